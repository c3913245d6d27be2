//! etcd's API on Quorate's engine.
//!
//! One module of `service` for each of etcd's services: parse, ask, encode. What all of
//! them need is in [`context`]; what they answer when something goes wrong, in `errors`.

#![forbid(unsafe_code)]

mod context;
mod errors;
mod service;
