//! One member of a Raft cluster, ready to run.

#![forbid(unsafe_code)]
