//! Wrong versions of single rules: what the checkers must notice (docs/mutants.md).
//!
//! Without the feature `mutants` every `mutant!(..)` is constantly false and leaves no
//! trace in the code. With it, one mutant at a time is switched on for the
//! current thread. Most are one line where the rule is decided; those that take more
//! stand in `wrong`.

/// Whether this wrong version of a rule is switched on.
#[cfg(feature = "mutants")]
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::is_on($crate::mutants::Mutant::$name)
    };
}

/// Whether this wrong version of a rule is switched on: never, without the feature.
#[cfg(not(feature = "mutants"))]
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::never()
    };
}

/// No mutant is ever on.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub const fn never() -> bool {
    false
}

#[cfg(feature = "mutants")]
mod list;
#[cfg(feature = "mutants")]
mod switch;
mod wrong;

#[cfg(feature = "mutants")]
pub use list::{Means, Mutant};
#[cfg(feature = "mutants")]
pub use switch::{is_on, limit, switch};
pub(crate) use wrong::{
    counts_although_old, incoming_of, is_not_answered, outgoing_of, quorum_matched,
};
