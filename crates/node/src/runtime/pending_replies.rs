//! The callers that wait for a reply.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::oneshot;

use crate::outcome::RequestOutcome;
use crate::request_table::RequestToken;

/// Where the outcomes of requests go, by token. The tokens of commands and reads are
/// consecutive, so a queue serves as the map; those of changes are few, and kept apart.
#[derive(Default)]
pub(crate) struct PendingReplies {
    replies: VecDeque<Option<oneshot::Sender<RequestOutcome>>>,
    /// The token of the first item in `replies`.
    first: u64,
    others: BTreeMap<RequestToken, oneshot::Sender<RequestOutcome>>,
}

impl PendingReplies {
    pub(crate) fn insert(&mut self, token: RequestToken, reply: oneshot::Sender<RequestOutcome>) {
        if self.replies.is_empty() && !token.is_slow() {
            self.first = token.0;
        }
        if token.0 == self.first + self.replies.len() as u64 {
            self.replies.push_back(Some(reply));
        } else {
            self.others.insert(token, reply);
        }
    }

    /// Sends the outcome, if the caller still waits.
    pub(crate) fn complete(&mut self, token: RequestToken, outcome: RequestOutcome) {
        let position =
            token.0.checked_sub(self.first).and_then(|position| usize::try_from(position).ok());
        let reply =
            position.and_then(|position| self.replies.get_mut(position)).and_then(Option::take);
        if let Some(reply) = reply.or_else(|| self.others.remove(&token)) {
            let _ = reply.send(outcome);
        }
        while let Some(None) = self.replies.front() {
            self.replies.pop_front();
            self.first += 1;
        }
    }
}
