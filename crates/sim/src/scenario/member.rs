//! One member on the stage: the engine, its disk, and the work it waits for.

use std::collections::VecDeque;
use std::sync::Arc;

use quorate_core::{Boot, Config, EntryId, HardState, Index, MemberId, Save};

use super::command::Unsynced;
use super::notation::entries_text;
use crate::cluster::{CoreMember, DiskState, WorkKind};

#[derive(Clone, Debug)]
pub(super) struct StoryMember {
    pub(super) config: Config,
    pub(super) core: CoreMember,
    /// What it was last started from.
    pub(super) boot: Boot,
    pub(super) texts: WorkTexts,
    /// It has processed an input since it was started.
    pub(super) stepped: bool,
    /// The commit index that the transcript has shown.
    pub(super) commit_shown: Index,
    /// The newest membership that it reported as settled since it was started.
    pub(super) settled: Option<EntryId>,
    /// The member that last rejected its identity.
    pub(super) identity_rejected_by: Option<MemberId>,
    /// A copy of its disk, for `roll-back`.
    pub(super) kept_disk: Option<Arc<DiskState>>,
}

/// How the transcript describes work in progress, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkTexts {
    pub(super) saves: VecDeque<String>,
    pub(super) applies: VecDeque<String>,
    pub(super) loads: VecDeque<String>,
}

impl StoryMember {
    pub(super) fn new(id: MemberId, disk: DiskState) -> Self {
        let mut config = Config::new(id);
        config.seed = id.0;
        Self {
            config,
            core: CoreMember::new(id, disk),
            boot: Boot::empty(),
            texts: WorkTexts::default(),
            stepped: false,
            commit_shown: 0,
            settled: None,
            identity_rejected_by: None,
            kept_disk: None,
        }
    }

    /// Starts from what the disk holds; the reason is given when that fails.
    pub(super) fn start(&mut self, tail: Option<usize>) -> Result<(), String> {
        self.core.raft = None;
        self.stepped = false;
        self.settled = None;
        self.identity_rejected_by = None;
        self.boot = self.core.start(&self.config, tail).map_err(|why| why.to_string())?;
        self.commit_shown = self.core.raft.as_ref().map_or(0, |raft| raft.log_status().commit);
        Ok(())
    }

    /// Loses the work in progress and, with `unsynced`, what was not synced.
    pub(super) fn crash(&mut self, unsynced: Unsynced) {
        self.core.crash(unsynced == Unsynced::Lost);
        self.texts = WorkTexts::default();
    }

    /// The log as the core sees it: the disk, and the saves in progress.
    pub(super) fn view(&self) -> DiskState {
        let mut view = DiskState::clone(&self.core.disk);
        self.core.saves.iter().for_each(|save| view.write(save));
        view
    }

    pub(super) fn has_work(&self, work: WorkKind) -> bool {
        match work {
            WorkKind::Saves => !self.core.saves.is_empty(),
            WorkKind::Applies => !self.core.applies.is_empty(),
            WorkKind::Loads => !self.core.loads.is_empty(),
        }
    }

    /// What a save changes, in the order it is written.
    pub(super) fn save_text(&self, save: &Save) -> String {
        let view = self.view();
        let mut parts = Vec::new();
        if let Some(hard_state) = save.hard_state {
            hard_state_text(&view.hard_state, &hard_state, &mut parts);
        }
        if let Some(meta) = &save.install {
            parts.push(format!("snapshot={} {}", meta.id, meta.membership));
        }
        if !save.entries.is_empty() {
            parts.push(entries_text(save.entries.iter()));
            let replaced = view.replaced_by(&save.entries);
            if !replaced.is_empty() {
                parts.push(format!("instead of {}", entries_text(&replaced)));
            }
        }
        parts.join(" ")
    }
}

fn hard_state_text(old: &HardState, new: &HardState, parts: &mut Vec<String>) {
    if old.term != new.term {
        parts.push(format!("term={}", new.term));
    }
    if (old.term, old.vote) != (new.term, new.vote) {
        parts.push(format!("vote={}", new.vote.map_or("none".to_owned(), |id| id.to_string())));
    }
    if old.commit != new.commit {
        parts.push(format!("commit={}", new.commit));
    }
}
