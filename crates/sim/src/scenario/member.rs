//! One member on the stage: the engine, its disk, and the work it waits for.

use std::collections::VecDeque;
use std::sync::Arc;

use quorate_core::{Boot, Config, EntryId, HardState, Index, MemberId, Raft, Save};

use super::command::{Unsynced, WorkKind};
use super::notation::entries_text;
use crate::cluster::{CoreMember, DiskState};

#[derive(Clone, Debug)]
pub(super) struct StoryMember {
    pub(super) config: Config,
    pub(super) core: CoreMember,
    /// What it was last started from.
    boot: Boot,
    pub(super) saves: WorkTexts,
    pub(super) applies: WorkTexts,
    pub(super) loads: WorkTexts,
    /// It has been told something since it was started.
    pub(super) stepped: bool,
    /// The commit index that the transcript has shown.
    pub(super) commit_shown: Index,
    /// The newest membership that it reported as settled since it was started.
    pub(super) settled: Option<EntryId>,
    /// Who told it last that it is not the member of its id.
    pub(super) disowned: Option<MemberId>,
    /// A copy of its disk, for `roll-back`.
    pub(super) kept_disk: Option<Arc<DiskState>>,
}

/// How the transcript describes work in progress, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkTexts {
    pub(super) texts: VecDeque<String>,
    pub(super) held: bool,
}

impl WorkTexts {
    /// What a transcript adds to the line of work that will have to wait.
    pub(super) fn suffix(&self) -> &'static str {
        if self.held { " (held)" } else { "" }
    }
}

impl StoryMember {
    pub(super) fn new(id: MemberId, disk: DiskState) -> Self {
        Self {
            config: Config { seed: id.0, ..Config::new(id) },
            core: CoreMember::new(id, disk),
            boot: Boot::empty(),
            saves: WorkTexts::default(),
            applies: WorkTexts::default(),
            loads: WorkTexts::default(),
            stepped: false,
            commit_shown: 0,
            settled: None,
            disowned: None,
            kept_disk: None,
        }
    }

    /// Starts from what the disk holds; the reason is given when that fails.
    pub(super) fn start(&mut self, tail: Option<usize>) -> Result<(), String> {
        self.core.raft = None;
        self.stepped = false;
        self.settled = None;
        self.disowned = None;
        self.boot = self.core.start(&self.config, tail).map_err(|why| why.to_string())?;
        self.commit_shown = self.core.raft.as_ref().map_or(0, |raft| raft.log_status().commit);
        Ok(())
    }

    /// Loses the work in progress, and what was not synced if so said.
    pub(super) fn crash(&mut self, unsynced: Unsynced) {
        self.core.crash(unsynced == Unsynced::Lost);
        for work in [&mut self.saves, &mut self.applies, &mut self.loads] {
            work.texts.clear();
        }
    }

    /// The core and what it was started from, while it runs.
    pub(super) fn started(&self) -> Option<(&Raft, &Boot)> {
        Some((self.core.raft.as_ref()?, &self.boot))
    }

    /// The log as the core sees it: the disk, and the saves in progress.
    pub(super) fn view(&self) -> DiskState {
        let mut view = DiskState::clone(&self.core.disk);
        self.core.saves.iter().for_each(|save| view.write(save));
        view
    }

    pub(super) fn hold(&mut self, work: WorkKind, held: bool) {
        match work {
            WorkKind::Saves => self.saves.held = held,
            WorkKind::Applies => self.applies.held = held,
            WorkKind::Loads => self.loads.held = held,
        }
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
