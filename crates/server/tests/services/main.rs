//! The services of members in this process, called by generated clients over loopback.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod access;
mod errors;
mod keys;
mod kubernetes;
mod leases;
mod long_commands;
mod maintenance;
mod members;
mod support;
mod watches;
