//! Why a command did not do what it was asked, and with which code it ends.

use std::error::Error;
use std::fmt;

use tonic::{Code, Status};

/// What went wrong, in words for whoever typed the command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Refused, or failed on the way.
    Failed(String),
    /// Asked for in a way that cannot be meant.
    Usage(String),
}

impl Failure {
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// Something failed, and this is why, with everything that is behind it.
    pub(crate) fn because(what: &str, why: &dyn Error) -> Self {
        Self::Failed(format!("{what}: {}", reasons(why)))
    }

    /// A server said no, or nobody answered.
    pub(crate) fn answered(what: &str, endpoint: &str, status: &Status) -> Self {
        let hint = hint(status);
        Self::Failed(format!("{what}: {} ({endpoint}){hint}", said(status)))
    }

    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) | Self::Usage(text) => f.write_str(text),
        }
    }
}

/// A status in words: what the server wrote, or the name of the code when it wrote nothing.
/// Beside etcd's text, which clients compare, Quorate's servers say why.
pub(crate) fn said(status: &Status) -> String {
    let text = written(status);
    match status.metadata().get("quorate-reason").and_then(|reason| reason.to_str().ok()) {
        Some(reason) if !text.contains(reason) => format!("{text}: {reason}"),
        _ => text,
    }
}

fn written(status: &Status) -> String {
    match (status.message(), status.source()) {
        ("", None) => status.code().description().to_string(),
        ("", Some(why)) => reasons(why),
        (text, None) => text.to_string(),
        // Without the cause it only says "transport error".
        (text, Some(why)) => format!("{text}: {}", reasons(why)),
    }
}

/// What to do about it, where that is not clear from the words.
fn hint(status: &Status) -> &'static str {
    match status.code() {
        Code::Unimplemented => {
            "; this server does not have that call: with a plain etcd use 'member add --learner', \
             'member promote' and 'member remove'"
        }
        Code::DeadlineExceeded => {
            "; it may still be done: look with 'quorate status', or give more --command-timeout"
        }
        _ => "",
    }
}

fn reasons(why: &dyn Error) -> String {
    let mut text = why.to_string();
    let mut cause = why.source();
    while let Some(deeper) = cause {
        let more = deeper.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = deeper.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_keep_the_words_of_the_server() {
        let status = Status::failed_precondition("etcdserver: can only promote a learner member");
        let failure = Failure::answered("cannot promote b", "h:1", &status);
        assert_eq!(
            failure.to_string(),
            "cannot promote b: etcdserver: can only promote a learner member (h:1)"
        );
        assert_eq!(failure.code(), 1);
        assert_eq!(Failure::usage("x").code(), 2);
    }

    #[test]
    fn the_reason_is_told_with_the_refusal() {
        let mut status = Status::unavailable("etcdserver: unhealthy cluster");
        let reason = "afterwards: 2 voters, quorum 2, live and caught up 1";
        status.metadata_mut().insert("quorate-reason", reason.parse().unwrap());
        assert_eq!(said(&status), format!("etcdserver: unhealthy cluster: {reason}"));
    }

    #[test]
    fn a_plain_etcd_is_told_apart() {
        let failure = Failure::answered("cannot plan", "h:1", &Status::unimplemented("unknown"));
        assert!(failure.to_string().contains("with a plain etcd use"));
    }

    #[test]
    fn silence_has_a_name() {
        assert_eq!(said(&Status::new(Code::Unavailable, "")), Code::Unavailable.description());
    }
}
