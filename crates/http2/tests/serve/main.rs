//! The server on sockets: with an independent client, and with frames that no client sends.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic fails the test")]

mod application;
mod calls;
mod frames;
mod hostile;
mod lifecycle;
mod random;
mod windows;
