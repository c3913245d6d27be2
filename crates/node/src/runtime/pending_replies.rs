//! Who waits for which answer.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::oneshot;

use crate::outcome::RequestOutcome;
use crate::request_table::RequestToken;

/// Where answers go, by ticket. Those of commands and reads grow by one, so a queue is a map;
/// those of changes are few, and far from them.
#[derive(Default)]
pub(crate) struct PendingReplies {
    replies: VecDeque<Option<oneshot::Sender<RequestOutcome>>>,
    /// The ticket of the first place in `replies`.
    first: u64,
    others: BTreeMap<RequestToken, oneshot::Sender<RequestOutcome>>,
}

impl PendingReplies {
    pub(crate) fn insert(&mut self, ticket: RequestToken, reply: oneshot::Sender<RequestOutcome>) {
        if self.replies.is_empty() && !ticket.is_slow() {
            self.first = ticket.0;
        }
        if ticket.0 == self.first + self.replies.len() as u64 {
            self.replies.push_back(Some(reply));
        } else {
            self.others.insert(ticket, reply);
        }
    }

    /// The one who asked may not wait any more.
    pub(crate) fn answer(&mut self, ticket: RequestToken, answer: RequestOutcome) {
        let place = ticket.0.checked_sub(self.first).and_then(|place| usize::try_from(place).ok());
        let reply = place.and_then(|place| self.replies.get_mut(place)).and_then(Option::take);
        if let Some(reply) = reply.or_else(|| self.others.remove(&ticket)) {
            let _ = reply.send(answer);
        }
        while let Some(None) = self.replies.front() {
            self.replies.pop_front();
            self.first += 1;
        }
    }
}
