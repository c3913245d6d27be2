//! How messages travel between being sent and being received.

use quorate_core::message::Message;

use super::scope::NetworkModel;
use super::state::ModelState;
use super::transitions::Transitions;

impl Transitions {
    /// Sends messages. Where a link is full, one of those on it or the new one is lost.
    pub(super) fn send(&self, state: ModelState, sends: &[u32], next: &mut Vec<ModelState>) {
        let first = next.len();
        next.push(state);
        for message in sends {
            let to = usize::from(self.links[*message as usize].to);
            for at in first..next.len() {
                let state = next[at];
                if self.is_dead(*message, state.members[to]) || state.messages().contains(message) {
                    continue;
                }
                match self.scope.bounds.network {
                    NetworkModel::Prompt { .. } => next[at].push_fresh(*message),
                    NetworkModel::Free { link } => self.send_on_link(at, *message, link, next),
                }
            }
        }
    }

    fn send_on_link(&self, at: usize, message: u32, room: usize, next: &mut Vec<ModelState>) {
        let (state, link) = (next[at], self.links[message as usize]);
        let on_link = || state.messages().iter().filter(|one| self.links[**one as usize] == link);
        if on_link().count() < room {
            next[at].insert(message);
            return;
        }
        for lost in on_link() {
            let mut state = state;
            state.remove(*lost);
            state.insert(message);
            next.push(state);
        }
    }

    /// A message that no state of its receiver, now or later, would take note of: an
    /// answer of a term that is over, or an order in it.
    pub(super) fn is_dead(&self, message: u32, receiver: u32) -> bool {
        let envelope = self.messages.value(message);
        let facts = &self.facts[receiver as usize];
        let (term, commit) = facts.floor;
        // Of a disk with a name even a late answer is remembered.
        if envelope.term >= term || envelope.incarnation != 0 || !facts.view.up {
            return false;
        }
        match &envelope.message {
            Message::AppendReply(_)
            | Message::HeartbeatReply(_)
            | Message::TimeoutNow
            | Message::Snapshot(_) => true,
            Message::VoteReply(reply) | Message::PreVoteReply(reply) => {
                reply.committed.index <= commit
            }
            _ => false,
        }
    }

    pub(super) fn forget_dead(&self, state: &mut ModelState, at: usize) {
        let receiver = state.members[at];
        let dead = |message: u32| {
            usize::from(self.links[message as usize].to) == at && self.is_dead(message, receiver)
        };
        state.retain(|message| !dead(message));
    }
}
