//! A state of the cluster: a few numbers. What they stand for is in the lab.

/// Members, messages in flight, what was seen before, and what was spent of bounds
/// that no member knows of.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    pub(super) members: [u32; MEMBERS_MAX],
    count: u8,
    pub(super) history: u32,
    pub(super) restarts: u32,
    /// Sorted: the same messages are the same state, in whatever order they were sent.
    flight: [u32; FLIGHT_MAX],
    flying: u8,
}

pub(super) const MEMBERS_MAX: usize = 6;
const FLIGHT_MAX: usize = 48;

impl State {
    pub(super) fn new(count: usize) -> Self {
        assert!(count <= MEMBERS_MAX, "at most {MEMBERS_MAX} members");
        Self {
            members: [0; MEMBERS_MAX],
            count: count as u8,
            history: 0,
            restarts: 0,
            flight: [0; FLIGHT_MAX],
            flying: 0,
        }
    }

    pub(super) fn messages(&self) -> &[u32] {
        &self.flight[..usize::from(self.flying)]
    }

    pub(super) fn contains(&self, message: u32) -> bool {
        self.messages().binary_search(&message).is_ok()
    }

    /// A message that is in flight already is not sent twice.
    pub(super) fn insert(&mut self, message: u32) {
        let Err(at) = self.messages().binary_search(&message) else { return };
        let len = usize::from(self.flying);
        assert!(len < FLIGHT_MAX, "at most {FLIGHT_MAX} messages: bound the links");
        self.flight.copy_within(at..len, at + 1);
        self.flight[at] = message;
        self.flying += 1;
    }

    pub(super) fn remove(&mut self, message: u32) {
        self.retain(|one| one != message);
    }

    pub(super) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        let mut kept = 0;
        for at in 0..usize::from(self.flying) {
            let message = self.flight[at];
            if keep(message) {
                self.flight[kept] = message;
                kept += 1;
            }
        }
        self.flying = kept as u8;
    }

    /// Everything that tells this state from another.
    pub(super) fn words(&self) -> impl Iterator<Item = u32> + '_ {
        let members = &self.members[..usize::from(self.count)];
        [self.history, self.restarts]
            .into_iter()
            .chain(members.iter().copied())
            .chain(self.messages().iter().copied())
    }

    /// The number of words, for putting states one behind the other.
    pub(super) fn len(&self) -> usize {
        2 + usize::from(self.count) + usize::from(self.flying)
    }

    pub(super) fn from_words(count: usize, words: &[u32]) -> Self {
        let mut state = Self::new(count);
        (state.history, state.restarts) = (words[0], words[1]);
        state.members[..count].copy_from_slice(&words[2..2 + count]);
        let flight = &words[2 + count..];
        state.flight[..flight.len()].copy_from_slice(flight);
        state.flying = flight.len() as u8;
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_of_sending_does_not_show() {
        let mut state = State::new(3);
        state.members[..3].copy_from_slice(&[7, 8, 9]);
        [5, 2, 9, 2].into_iter().for_each(|message| state.insert(message));
        assert_eq!(state.messages(), [2, 5, 9]);
        state.remove(5);
        let words: Vec<u32> = state.words().collect();
        assert_eq!(words.len(), state.len());
        assert_eq!(State::from_words(3, &words).messages(), state.messages());
        assert!(state.words().eq(State::from_words(3, &words).words()));
    }
}
