//! The table of open requests: those that were made here and have not ended.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use quorate_core::{Change, EntryId, Index, MemberId, Refusal, RequestId, Term};

/// Identifies a request to its caller until it ends. A driver uses each token once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[must_use = "the outcome of the request is reported under this token"]
pub struct RequestToken(pub u64);

impl RequestToken {
    /// Whether it belongs to a change or a transfer.
    pub(crate) fn is_slow(self) -> bool {
        self.0 & SLOW != 0
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestBody {
    /// A command with its header, as it is logged.
    Command(Bytes),
    /// A query to the machine; none for a barrier.
    Read(Option<Bytes>),
    Change(Box<Change>, ChangeWait),
    Transfer(MemberId),
}

/// When a membership change counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeWait {
    /// When it is committed.
    Committed,
    /// When it is settled; a goal, when it has ended.
    Settled {
        /// How many ticks that may take after it is committed.
        ticks: u64,
    },
}

impl RequestBody {
    /// Whether it may take much longer than a command or a read.
    fn is_slow(&self) -> bool {
        matches!(self, Self::Change(..) | Self::Transfer(_))
    }
}

/// The progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestStage {
    /// No leader has it: it certainly has not happened.
    Waiting,
    /// Sent to a leader; it may not have arrived.
    Sent,
    /// The leader that it was sent to has logged it.
    Logged(EntryId),
    /// A change that is committed and not settled.
    Committed(EntryId),
    /// A committed goal that has not ended.
    Pursued(EntryId),
    /// A read that may run once this index was handed to the machine.
    Confirmed(Index),
    /// The query was handed to the machine.
    Querying,
}

/// How often a request is proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryPolicy {
    /// Once: never forwarded and never retried.
    SingleAttempt,
    /// Until it is accepted, or until its deadline.
    UntilDeadline,
}

#[derive(Clone, Debug)]
pub(crate) struct OpenRequest {
    pub(crate) body: RequestBody,
    pub(crate) retries: RetryPolicy,
    pub(crate) stage: RequestStage,
    /// How many attempts may have been accepted.
    pub(crate) open_attempts: u32,
    /// The newest attempt, while its reply is outstanding.
    pub(crate) attempt: Option<RequestId>,
    /// Why the newest attempt was refused, if the request is retried.
    pub(crate) refusal: Option<Refusal>,
    /// When it is retried, unless something happens before.
    pub(crate) retry_at: u64,
    pub(crate) deadline: u64,
    /// The term of the leader that the newest attempt was sent to.
    pub(crate) sent_in: Term,
}

impl OpenRequest {
    pub(crate) fn new(body: RequestBody, deadline: u64) -> Self {
        Self {
            body,
            retries: RetryPolicy::UntilDeadline,
            stage: RequestStage::Waiting,
            open_attempts: 0,
            attempt: None,
            refusal: None,
            retry_at: deadline,
            deadline,
            sent_in: 0,
        }
    }
}

/// Open requests by token.
///
/// Commands and reads are many and end soon: their tokens grow by one, so a queue serves as a
/// map. Changes and transfers are few and may take long, so they have a separate map and
/// separate numbers: otherwise one that waits for a member to join would keep the places of all
/// later requests in the queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestTable {
    open: VecDeque<Option<OpenRequest>>,
    /// The token of the first place in `open`.
    first: u64,
    count: usize,
    slow: BTreeMap<u64, OpenRequest>,
    slow_count: u64,
    attempts: BTreeMap<RequestId, RequestToken>,
}

/// Tokens of changes and transfers have this bit.
const SLOW: u64 = 1 << 63;

impl RequestTable {
    pub(crate) fn new(first: u64) -> Self {
        Self { first, ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.count + self.slow.len()
    }

    /// Every command and read before this one has ended.
    pub(crate) fn oldest(&self) -> RequestToken {
        RequestToken(self.first)
    }

    /// The token that the next command or read gets.
    pub(crate) fn next(&self) -> RequestToken {
        RequestToken(self.first + self.open.len() as u64)
    }

    pub(crate) fn insert(&mut self, open: OpenRequest) -> RequestToken {
        if open.body.is_slow() {
            self.slow_count += 1;
            let number = SLOW | self.slow_count;
            self.slow.insert(number, open);
            return RequestToken(number);
        }
        let token = self.next();
        self.open.push_back(Some(open));
        self.count += 1;
        token
    }

    pub(crate) fn get_mut(&mut self, token: RequestToken) -> Option<&mut OpenRequest> {
        if token.is_slow() {
            return self.slow.get_mut(&token.0);
        }
        let place = token.0.checked_sub(self.first)?;
        self.open.get_mut(usize::try_from(place).ok()?)?.as_mut()
    }

    pub(crate) fn remove(&mut self, token: RequestToken) -> Option<OpenRequest> {
        let open = if token.is_slow() {
            self.slow.remove(&token.0)?
        } else {
            let place = usize::try_from(token.0.checked_sub(self.first)?).ok()?;
            let open = self.open.get_mut(place)?.take()?;
            self.count -= 1;
            open
        };
        if let Some(attempt) = open.attempt {
            self.attempts.remove(&attempt);
        }
        while let Some(None) = self.open.front() {
            self.open.pop_front();
            self.first += 1;
        }
        Some(open)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (RequestToken, &OpenRequest)> {
        let numbered = self.open.iter().zip(self.first..);
        let quick =
            numbered.filter_map(|(open, number)| Some((RequestToken(number), open.as_ref()?)));
        quick.chain(self.slow.iter().map(|(number, open)| (RequestToken(*number), open)))
    }

    pub(crate) fn tokens(&self, matches: impl Fn(&OpenRequest) -> bool) -> Vec<RequestToken> {
        self.iter().filter(|(_, open)| matches(open)).map(|(token, _)| token).collect()
    }

    /// As `tokens`, of changes and transfers only.
    pub(crate) fn slow_tokens(&self, matches: impl Fn(&OpenRequest) -> bool) -> Vec<RequestToken> {
        let matches = self.slow.iter().filter(|(_, open)| matches(open));
        matches.map(|(number, _)| RequestToken(*number)).collect()
    }

    /// From now on a reply to this attempt belongs to this request, and one to an earlier
    /// attempt is ignored.
    pub(crate) fn expect_reply(&mut self, token: RequestToken, attempt: RequestId) {
        let Some(open) = self.get_mut(token) else { return };
        let earlier = open.attempt.replace(attempt);
        if let Some(earlier) = earlier {
            self.attempts.remove(&earlier);
        }
        self.attempts.insert(attempt, token);
    }

    /// The request that a reply to this attempt belongs to, if it is open.
    pub(crate) fn take_attempt(&mut self, attempt: RequestId) -> Option<RequestToken> {
        let token = self.attempts.remove(&attempt)?;
        self.get_mut(token)?.attempt = None;
        Some(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_change_does_not_keep_later_requests_in_the_table() {
        let mut requests = RequestTable::new(1);
        let body = RequestBody::Change(Box::new(Change::leave()), ChangeWait::Committed);
        let change = requests.insert(OpenRequest::new(body, 0));
        for number in 1..=1_000 {
            let body = RequestBody::Command(Bytes::new());
            let token = requests.insert(OpenRequest::new(body, 0));
            assert_eq!(token, RequestToken(number));
            assert!(requests.remove(token).is_some());
            assert!(requests.open.is_empty());
        }
        assert_eq!((requests.oldest(), requests.len()), (RequestToken(1_001), 1));
        assert_eq!(requests.slow_tokens(|_| true), [change]);
        assert!(requests.remove(change).is_some());
        assert_eq!(requests.len(), 0);
    }
}
