//! The services of members in this process, called by generated clients over loopback.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod access;
mod errors;
mod keys;
mod leases;
mod maintenance;
mod members;
mod support;
mod watches;
