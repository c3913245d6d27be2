//! A state of the cluster: a few numbers. The transitions know their meaning.

/// Members, messages in flight, what was seen before, and what was spent of bounds
/// that no member knows of.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelState {
    pub(super) members: [u32; MEMBERS_MAX],
    count: u8,
    pub(super) history: u32,
    pub(super) restarts: u32,
    /// First those that are dealt with before anything else, in the order of sending;
    /// then those that may take any time, sorted: of these the order does not matter.
    flight: [u32; FLIGHT_MAX],
    fresh: u8,
    flying: u8,
}

pub(super) const MEMBERS_MAX: usize = 6;
const FLIGHT_MAX: usize = 48;

impl ModelState {
    pub(super) fn new(count: usize) -> Self {
        assert!(count <= MEMBERS_MAX, "at most {MEMBERS_MAX} members");
        Self {
            members: [0; MEMBERS_MAX],
            count: count as u8,
            history: 0,
            restarts: 0,
            flight: [0; FLIGHT_MAX],
            fresh: 0,
            flying: 0,
        }
    }

    /// Messages that may take any time.
    pub(super) fn messages(&self) -> &[u32] {
        &self.flight[usize::from(self.fresh)..usize::from(self.flying)]
    }

    /// Messages to be dealt with now, the first of them first.
    pub(super) fn fresh(&self) -> &[u32] {
        &self.flight[..usize::from(self.fresh)]
    }

    /// A message that is in flight already is not sent twice.
    pub(super) fn insert(&mut self, message: u32) {
        let Err(at) = self.messages().binary_search(&message) else { return };
        self.put(usize::from(self.fresh) + at, message);
    }

    pub(super) fn push_fresh(&mut self, message: u32) {
        if !self.fresh().contains(&message) {
            self.put(usize::from(self.fresh), message);
            self.fresh += 1;
        }
    }

    fn put(&mut self, at: usize, message: u32) {
        let len = usize::from(self.flying);
        assert!(len < FLIGHT_MAX, "at most {FLIGHT_MAX} messages: bound the network");
        self.flight.copy_within(at..len, at + 1);
        self.flight[at] = message;
        self.flying += 1;
    }

    /// Takes the first message to be dealt with.
    pub(super) fn pop_fresh(&mut self) -> Option<u32> {
        let first = *self.fresh().first()?;
        self.flight.copy_within(1..usize::from(self.flying), 0);
        self.fresh -= 1;
        self.flying -= 1;
        Some(first)
    }

    pub(super) fn remove(&mut self, message: u32) {
        self.retain(|one| one != message);
    }

    pub(super) fn retain(&mut self, keep: impl Fn(u32) -> bool) {
        let (mut kept, mut fresh) = (0, 0);
        for at in 0..usize::from(self.flying) {
            let message = self.flight[at];
            if keep(message) {
                self.flight[kept] = message;
                kept += 1;
                fresh += usize::from(at < usize::from(self.fresh));
            }
        }
        (self.fresh, self.flying) = (fresh as u8, kept as u8);
    }

    /// Everything that distinguishes this state from others.
    pub(super) fn words(&self) -> impl Iterator<Item = u32> + '_ {
        let members = &self.members[..usize::from(self.count)];
        let flight = &self.flight[..usize::from(self.flying)];
        let counts = u32::from(self.fresh) << 16 | self.restarts;
        [self.history, counts].into_iter().chain(members.iter().chain(flight).copied())
    }

    /// The number of words, for putting states one behind the other.
    pub(super) fn len(&self) -> usize {
        2 + usize::from(self.count) + usize::from(self.flying)
    }

    pub(super) fn from_words(count: usize, words: &[u32]) -> Self {
        let mut state = Self::new(count);
        state.history = words[0];
        (state.fresh, state.restarts) = ((words[1] >> 16) as u8, words[1] & 0xffff);
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
        let mut state = ModelState::new(3);
        state.members[..3].copy_from_slice(&[7, 8, 9]);
        [5, 2, 9, 2].into_iter().for_each(|message| state.insert(message));
        assert_eq!(state.messages(), [2, 5, 9]);
        state.remove(5);
        [8, 3, 8].into_iter().for_each(|message| state.push_fresh(message));
        assert_eq!(state.pop_fresh(), Some(8));
        assert_eq!((state.fresh(), state.messages()), (&[3][..], &[2, 9][..]));
        let words: Vec<u32> = state.words().collect();
        assert_eq!(words.len(), state.len());
        assert_eq!(ModelState::from_words(3, &words).messages(), state.messages());
        assert!(state.words().eq(ModelState::from_words(3, &words).words()));
    }
}
