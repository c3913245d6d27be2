//! Who sets up a machine for each member that was added.

use quorate_core::{Boot, MemberId, Raft};

use super::{Disk, World};

impl World {
    /// Gives every newcomer an empty disk and tells it the entry that added it. A member
    /// that comes back under its old id is a newcomer like any other: the old disk is gone.
    pub(crate) fn set_up_newcomers(&mut self) {
        let live = self.members.values().filter_map(|member| member.raft.as_ref());
        let Some(best) = live.max_by_key(|raft| raft.status().log.last) else { return };
        let membership = best.membership().clone();
        for id in membership.members().iter() {
            let joined_at = membership.joined_at(id);
            let newer = |config: &quorate_core::Config| {
                config.incarnation != 0 && joined_at > config.joined_at
            };
            if self.members.get(&id).is_some_and(|member| newer(&member.config)) {
                self.replace(id, joined_at);
            }
        }
    }

    fn replace(&mut self, id: MemberId, joined_at: u64) {
        if self.down.contains(&id) {
            return;
        }
        let Some(member) = self.members.get_mut(&id) else { return };
        member.forget();
        member.config.joined_at = joined_at;
        member.config.incarnation += 100;
        member.disk = Disk::new(&Boot::empty());
        let raft = Raft::new(member.config.clone(), member.disk.boot()).unwrap();
        self.history.restarted(&raft);
        member.raft = Some(raft);
        self.seen.replaced += 1;
    }
}
