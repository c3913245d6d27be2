//! Commitment (thesis §3.6.2), and handing entries to the state machine.

use crate::{Accepted, Dropped, Entries, Index, Load, LoadTarget, Malformed, Raft};

impl Raft {
    /// Advances the commit index to what a quorum holds. Only an entry of the current term
    /// is committed by counting, and with it all earlier ones (thesis §3.6.2).
    pub(crate) fn commit_by_quorum(&mut self) -> bool {
        let Some(leader) = self.role.leader() else { return false };
        let index = leader.quorum_matched();
        if index <= self.log.commit || index < leader.first_of_term {
            return false;
        }
        self.commit_to(index);
        true
    }

    /// The commit index never decreases.
    pub(crate) fn commit_to(&mut self, index: Index) {
        let before = self.log.commit;
        if index <= before {
            return;
        }
        assert!(index <= self.log.last().index, "commit {index} is within the log");
        self.log.commit = index;
        if let Some(leader) = self.role.leader_mut() {
            let bytes = self.log.payload_bytes(before, index);
            leader.uncommitted_bytes = leader.uncommitted_bytes.saturating_sub(bytes);
            self.membership_work_due = true;
        }
    }

    /// Up to where entries may be handed to the state machine now.
    fn may_apply_to(&self) -> Index {
        if self.installing.is_some() {
            return 0; // The snapshot is installed first.
        }
        self.log.may_apply_to(self.config.apply_unsaved)
    }

    #[inline]
    pub(crate) fn has_apply(&self) -> bool {
        self.log.has_to_apply(self.may_apply_to())
            && !(self.loading && self.log.must_load_to_apply())
    }

    /// The next entries for the state machine; loaded ones first.
    pub(crate) fn take_apply(&mut self) -> Entries {
        let to = self.may_apply_to();
        if !self.log.has_to_apply(to) {
            return Entries::new();
        }
        let bytes_max = self.config.apply_bytes_max;
        if let Some(loaded) = self.out.loaded.take() {
            return self.log.take_loaded(&loaded, to, bytes_max);
        }
        if self.log.must_load_to_apply() {
            if !std::mem::replace(&mut self.loading, true) {
                let range = self.log.applying + 1..self.log.tail_first().min(to + 1);
                self.out.rare().load.push(Load { target: LoadTarget::Machine, range, bytes_max });
            }
            return Entries::new();
        }
        self.log.take_to_apply(to, bytes_max)
    }

    pub(crate) fn on_loaded_to_apply(&mut self, entries: &Entries) -> Result<Accepted, Dropped> {
        if !std::mem::replace(&mut self.loading, false) {
            return Err(Dropped::NothingPending);
        }
        if entries.is_empty() || self.installing.is_some() {
            return Err(Dropped::NothingPending);
        }
        let next = entries.first().map(|entry| entry.id.index);
        if next != Some(self.log.applying + 1) || self.own_entries(entries).is_none() {
            return Err(Malformed::WrongEntries.into());
        }
        self.out.loaded = Some(Box::new(entries.clone()));
        Ok(Accepted::Done)
    }

    pub(crate) fn on_applied(&mut self, index: Index) -> Result<Accepted, Dropped> {
        let installed = self.note_machine_installed(index);
        if installed && index == self.log.applied {
            return Ok(Accepted::Done);
        }
        if index <= self.log.applied || index > self.log.applying {
            return Err(Dropped::NothingPending);
        }
        self.log.applied_to(index);
        self.membership_work_due = true;
        self.leave_joint_due = true;
        Ok(Accepted::Done)
    }
}
