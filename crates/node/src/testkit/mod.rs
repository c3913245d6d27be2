//! For who implements a [`Transport`](crate::Transport) of their own: suites that it has
//! to pass.

pub(crate) mod chance;
pub(crate) mod fake;
pub mod transport;
