//! Which states were seen: 64-bit fingerprints in one open table.
//!
//! Eight bytes a state at three quarters full. Two different states have the
//! same fingerprint with a chance of about n² / 2⁶⁵ over a whole run of n states; then
//! one of them is not explored.

#[derive(Clone, Debug)]
pub(super) struct VisitedStates {
    /// 0 marks a free slot.
    slots: Vec<u64>,
    len: usize,
}

impl VisitedStates {
    pub(super) fn new() -> Self {
        Self { slots: vec![0; 1 << 12], len: 0 }
    }

    /// True when it was not there.
    pub(super) fn insert(&mut self, fingerprint: u64) -> bool {
        if (self.len + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        let new = put(&mut self.slots, fingerprint.max(1));
        self.len += usize::from(new);
        new
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> usize {
        self.slots.len() * size_of::<u64>()
    }

    fn grow(&mut self) {
        let mut slots = vec![0; self.slots.len() * 2];
        for fingerprint in self.slots.iter().filter(|slot| **slot != 0) {
            put(&mut slots, *fingerprint);
        }
        self.slots = slots;
    }
}

fn put(slots: &mut [u64], fingerprint: u64) -> bool {
    let mask = slots.len() - 1;
    let mut at = fingerprint as usize & mask;
    loop {
        match slots[at] {
            0 => {
                slots[at] = fingerprint;
                return true;
            }
            there if there == fingerprint => return false,
            _ => at = (at + 1) & mask,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_what_it_was_shown_while_it_grows() {
        let mut visited = VisitedStates::new();
        let number = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        assert!((1..50_000).all(|n| visited.insert(number(n))));
        assert!((1..50_000).all(|n| !visited.insert(number(n))));
        assert_eq!(visited.len(), 49_999);
    }
}
