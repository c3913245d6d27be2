//! What must hold of a run, asked from outside: the checkers know what clients and
//! members reported, never how it came about.

pub mod answers;
pub mod linearizable;
