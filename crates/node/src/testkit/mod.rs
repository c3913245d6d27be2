//! For who implements a [`Transport`](crate::Transport) of their own: suites that it has
//! to pass.

mod chance;
mod fake;
pub mod transport;
