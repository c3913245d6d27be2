//! Errors of commands: the text for the user and the exit code.

use std::error::Error;
use std::fmt;

use tonic::{Code, Status};

/// Why a command failed, in words for its user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CliError {
    /// The server refused the request, or the request failed.
    Failed(String),
    /// The arguments are invalid.
    Usage(String),
    /// The server's member was removed from its cluster; starting it again does not help.
    MemberRemoved(String),
    /// The user interrupted the command.
    Interrupted(String),
}

impl CliError {
    pub(crate) fn failed(text: impl Into<String>) -> Self {
        Self::Failed(text.into())
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }

    /// What failed, with the whole chain of causes.
    pub(crate) fn with_cause(context: &str, cause: &dyn Error) -> Self {
        Self::Failed(format!("{context}: {}", cause_chain(cause)))
    }

    /// A server refused a request, or did not answer.
    pub(crate) fn from_status(context: &str, endpoint: &str, status: &Status) -> Self {
        let hint = hint(status);
        Self::Failed(format!("{context}: {} ({endpoint}){hint}", status_text(status)))
    }

    /// For `-w json`.
    pub(crate) fn as_json(&self) -> serde_json::Value {
        serde_json::json!({ "error": self.to_string(), "exitCode": self.exit_code() })
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Usage(_) => 2,
            Self::MemberRemoved(_) => 3,
            // As a shell reports a program that the signal ended.
            Self::Interrupted(_) => 130,
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text)
            | Self::Usage(text)
            | Self::MemberRemoved(text)
            | Self::Interrupted(text) => f.write_str(text),
        }
    }
}

/// The server's message, or the description of the code if there is no message. Quorate's
/// servers send the reason in addition to etcd's text, which clients compare.
pub(crate) fn status_text(status: &Status) -> String {
    let text = message_with_causes(status);
    let reason = status.metadata().get("quorate-reason").and_then(|reason| reason.to_str().ok());
    match reason.map(|reason| reason.strip_prefix("refused: ").unwrap_or(reason)) {
        Some(reason) if !text.contains(reason) => format!("{text}: {reason}"),
        _ => text,
    }
}

fn message_with_causes(status: &Status) -> String {
    match (status.message(), status.source()) {
        ("", None) => status.code().description().to_string(),
        ("", Some(cause)) => cause_chain(cause),
        (text, None) => text.to_string(),
        // Without the cause it only says "transport error".
        (text, Some(cause)) => format!("{text}: {}", cause_chain(cause)),
    }
}

/// What the user can do, where the message does not say so.
fn hint(status: &Status) -> &'static str {
    match status.code() {
        Code::Unimplemented => {
            "; this server does not implement that call: with a plain etcd use \
             'member add --learner', 'member promote' and 'member remove'"
        }
        Code::DeadlineExceeded => {
            "; the request may still take effect: check with 'quorate status', or set a longer \
             --command-timeout"
        }
        _ => "",
    }
}

fn cause_chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
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
    fn refusals_contain_the_message_of_the_server() {
        let status = Status::failed_precondition("etcdserver: can only promote a learner member");
        let error = CliError::from_status("cannot promote b", "h:1", &status);
        assert_eq!(
            error.to_string(),
            "cannot promote b: etcdserver: can only promote a learner member (h:1)"
        );
        assert_eq!(error.exit_code(), 1);
        assert_eq!(CliError::usage("x").exit_code(), 2);
    }

    #[test]
    fn refusals_contain_the_reason() {
        let mut status = Status::unavailable("etcdserver: unhealthy cluster");
        let reason = "afterwards: 2 voters, quorum 2, live and caught up 1";
        status.metadata_mut().insert("quorate-reason", reason.parse().unwrap());
        assert_eq!(status_text(&status), format!("etcdserver: unhealthy cluster: {reason}"));
    }

    #[test]
    fn a_missing_call_gets_a_hint_for_plain_etcd() {
        let status = Status::unimplemented("unknown");
        let error = CliError::from_status("cannot plan", "h:1", &status);
        assert!(error.to_string().contains("with a plain etcd use"));
    }

    #[test]
    fn a_status_without_message_shows_its_code() {
        let status = Status::new(Code::Unavailable, "");
        assert_eq!(status_text(&status), Code::Unavailable.description());
    }
}
