//! `quorate server`, and what the name `etcd` stands for: run a member.

use std::ffi::OsString;

use crate::failure::Failure;

pub(crate) fn run(arguments: &[OsString]) -> Result<(), Failure> {
    let _ = arguments;
    Err(Failure::failed("no server"))
}
