//! The callers that wait for a reply.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::oneshot;

use super::shared_barriers::BarrierCallers;
use super::sync::lock;
use crate::applier::{CommandOutcome, MachineJobDone};
use crate::outcome::{RequestOutcome, RequestReply};
use crate::request_table::RequestToken;

/// Where the outcomes of requests go, by token. The member's task completes requests, and the machine's
/// task those whose commands or queries it has run, since their callers need nothing else. The first of them
/// completes a request; the other finds no caller.
#[derive(Default)]
pub(crate) struct PendingReplies(Arc<Mutex<ReplyTable>>);

/// Where an outcome goes.
pub(crate) enum ReplyReceiver {
    Single(oneshot::Sender<RequestOutcome>),
    Barrier(BarrierCallers),
}

impl ReplyReceiver {
    fn send(self, outcome: RequestOutcome) {
        match self {
            // It fails if the caller no longer waits.
            Self::Single(reply) => _ = reply.send(outcome),
            Self::Barrier(callers) => callers.complete(outcome),
        }
    }
}

/// The same callers for the machine's task. They end with the member's task, also if it panics.
pub(crate) struct MachineReplies(Weak<Mutex<ReplyTable>>);

/// The tokens of commands and reads are consecutive, so a queue serves as the map; those of changes
/// are few, and kept apart.
#[derive(Default)]
struct ReplyTable {
    replies: VecDeque<Option<ReplyReceiver>>,
    /// The token of the first item in `replies`.
    first: u64,
    others: BTreeMap<RequestToken, ReplyReceiver>,
}

/// Replies with the callers that wait for them.
pub(crate) struct ReadyReplies(Vec<(ReplyReceiver, RequestOutcome)>);

impl ReadyReplies {
    pub(crate) fn send(self) {
        for (caller, outcome) in self.0 {
            caller.send(outcome);
        }
    }
}

impl PendingReplies {
    pub(crate) fn insert(&self, token: RequestToken, caller: ReplyReceiver) {
        lock(&self.0).insert(token, caller);
    }

    /// Sends the outcomes to those callers that still wait.
    pub(crate) fn complete(&self, outcomes: Vec<(RequestToken, RequestOutcome)>) {
        if outcomes.is_empty() {
            return;
        }
        let mut table = lock(&self.0);
        let ready = outcomes.into_iter();
        let ready =
            ready.filter_map(|(token, outcome)| table.take(token).map(|caller| (caller, outcome)));
        let ready = ReadyReplies(ready.collect());
        // Sending wakes tasks.
        drop(table);
        ready.send();
    }

    pub(crate) fn for_machine(&self) -> MachineReplies {
        MachineReplies(Arc::downgrade(&self.0))
    }
}

impl MachineReplies {
    /// Takes the replies of commands and queries that have run out of these results. What else there is to
    /// know stays for the member, which also publishes a new cluster version before it is answered.
    pub(crate) fn take_ready(&self, done: &mut [MachineJobDone]) -> ReadyReplies {
        let mut ready = Vec::new();
        let Some(table) = self.0.upgrade() else { return ReadyReplies(ready) };
        let mut locked = None;
        for job in done {
            match job {
                MachineJobDone::Applied { outcomes, versions, .. } if versions.is_empty() => {
                    for (sequence, outcome) in outcomes {
                        let CommandOutcome::Ran { index, reply } = outcome else { continue };
                        let table = locked.get_or_insert_with(|| lock(&table));
                        if let Some(caller) = table.take(RequestToken(*sequence)) {
                            let (index, reply) = (*index, std::mem::take(reply));
                            ready.push((caller, Ok(RequestReply::Ran { index, reply })));
                        }
                    }
                }
                MachineJobDone::Queried { token, index, reply } => {
                    let table = locked.get_or_insert_with(|| lock(&table));
                    if let Some(caller) = table.take(*token) {
                        let (index, reply) = (*index, std::mem::take(reply));
                        ready.push((caller, Ok(RequestReply::Read { index, reply })));
                    }
                }
                _ => {}
            }
        }
        ReadyReplies(ready)
    }
}

impl ReplyTable {
    fn insert(&mut self, token: RequestToken, caller: ReplyReceiver) {
        if self.replies.is_empty() && !token.is_slow() {
            self.first = token.0;
        }
        if token.0 == self.first + self.replies.len() as u64 {
            self.replies.push_back(Some(caller));
        } else {
            self.others.insert(token, caller);
        }
    }

    fn take(&mut self, token: RequestToken) -> Option<ReplyReceiver> {
        let position =
            token.0.checked_sub(self.first).and_then(|position| usize::try_from(position).ok());
        let reply =
            position.and_then(|position| self.replies.get_mut(position)).and_then(Option::take);
        let reply = reply.or_else(|| self.others.remove(&token));
        while let Some(None) = self.replies.front() {
            self.replies.pop_front();
            self.first += 1;
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::cluster_version::ClusterVersion;
    use crate::outcome::RequestRefused;

    fn waiting(replies: &PendingReplies, tokens: &[u64]) -> Vec<oneshot::Receiver<RequestOutcome>> {
        let insert = |token: &u64| {
            let (reply, answer) = oneshot::channel();
            replies.insert(RequestToken(*token), ReplyReceiver::Single(reply));
            answer
        };
        tokens.iter().map(insert).collect()
    }

    fn applied(outcomes: Vec<(u64, CommandOutcome)>) -> MachineJobDone {
        let (versions, removed, membership_changed) = (Vec::new(), false, false);
        MachineJobDone::Applied { index: 9, outcomes, removed, versions, membership_changed }
    }

    fn ran(index: u64) -> CommandOutcome {
        CommandOutcome::Ran { index, reply: Bytes::from(index.to_string()) }
    }

    #[test]
    fn a_command_that_ran_is_answered_once_and_others_wait_for_the_member() {
        let replies = PendingReplies::default();
        let mut answers = waiting(&replies, &[5, 6, 7, 8]);
        let mut done = [applied(vec![(6, ran(2)), (8, ran(3)), (7, CommandOutcome::NotMember)])];
        replies.for_machine().take_ready(&mut done).send();
        let answer = answers[1].try_recv().unwrap();
        assert_eq!(answer, Ok(RequestReply::Ran { index: 2, reply: "2".into() }));
        assert!(answers[3].try_recv().unwrap().is_ok());
        assert!(answers[0].try_recv().is_err() && answers[2].try_recv().is_err());
        // The member completes all of them, and knows nothing of the replies.
        let refused = || Err(RequestRefused::NotMember.into());
        let all = (5..9).map(|token| (RequestToken(token), refused())).collect();
        replies.complete(all);
        assert_eq!(answers[0].try_recv().unwrap(), refused());
        assert_eq!(answers[2].try_recv().unwrap(), refused());
        assert!(lock(&replies.0).replies.is_empty());
    }

    #[test]
    fn a_query_that_ran_is_answered_once() {
        let replies = PendingReplies::default();
        let mut answers = waiting(&replies, &[3]);
        let queried =
            || MachineJobDone::Queried { token: RequestToken(3), index: 9, reply: "reply".into() };
        replies.for_machine().take_ready(&mut [queried()]).send();
        let expected = RequestReply::Read { index: 9, reply: "reply".into() };
        assert_eq!(answers[0].try_recv().unwrap(), Ok(expected));
        assert!(replies.for_machine().take_ready(&mut [queried()]).0.is_empty());
    }

    #[test]
    fn a_request_that_the_member_has_ended_is_not_answered_again() {
        let replies = PendingReplies::default();
        let mut answers = waiting(&replies, &[1]);
        replies.complete(vec![(RequestToken(1), Err(RequestRefused::Stopped.into()))]);
        let mut done = [applied(vec![(1, ran(4))])];
        let ready = replies.for_machine().take_ready(&mut done);
        assert!(ready.0.is_empty());
        assert!(answers[0].try_recv().unwrap().is_err());
    }

    #[test]
    fn a_new_cluster_version_is_left_to_the_member() {
        let replies = PendingReplies::default();
        let mut answers = waiting(&replies, &[1]);
        let versions = vec![(4, ClusterVersion::default())];
        let (outcomes, removed, membership_changed) = (vec![(1, ran(4))], false, false);
        let index = 4;
        let mut done =
            [MachineJobDone::Applied { index, outcomes, removed, versions, membership_changed }];
        replies.for_machine().take_ready(&mut done).send();
        assert_eq!(answers[0].try_recv(), Err(oneshot::error::TryRecvError::Empty));
    }

    #[test]
    fn callers_end_with_the_member_although_the_machine_runs() {
        let replies = PendingReplies::default();
        let mut answers = waiting(&replies, &[1]);
        let machine = replies.for_machine();
        drop(replies);
        assert_eq!(answers[0].try_recv(), Err(oneshot::error::TryRecvError::Closed));
        assert!(machine.take_ready(&mut [applied(vec![(1, ran(4))])]).0.is_empty());
    }
}
