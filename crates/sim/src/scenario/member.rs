//! One member on the stage: the engine, its disk, and the work it waits for.

use std::collections::VecDeque;

use quorate_core::{
    Boot, Config, Entries, EntryId, HardState, Index, Load, MemberId, Raft, Save, SaveId,
};

use super::command::{Unsynced, Work};
use super::disk::Disk;
use super::notation::entries_text;

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) config: Config,
    /// Nothing while it is down.
    pub(super) raft: Option<Raft>,
    /// What it was last started from.
    boot: Boot,
    pub(super) disk: Disk,
    /// The disk as of the last save that somebody waited for.
    synced: Disk,
    pub(super) saves: Queue<Save>,
    pub(super) applies: Queue<Batch>,
    pub(super) loads: Queue<Load>,
    /// It has been told something since it was started.
    pub(super) stepped: bool,
    /// The commit index that the transcript has shown.
    pub(super) commit_shown: Index,
    /// The newest membership that it reported as settled since it was started.
    pub(super) settled: Option<EntryId>,
    /// Who told it last that it is not the member of its id.
    pub(super) disowned: Option<MemberId>,
}

/// Entries handed to the state machine at once.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) entries: Entries,
    /// They may not run before this save is done.
    pub(super) after: Option<SaveId>,
}

impl Batch {
    pub(super) fn last(&self) -> Option<Index> {
        self.entries.last().map(|entry| entry.id.index)
    }
}

/// Work under way, oldest first, each with the words that describe it.
#[derive(Clone, Debug)]
pub(super) struct Queue<T> {
    jobs: VecDeque<(T, String)>,
    pub(super) held: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { jobs: VecDeque::new(), held: false }
    }
}

impl<T> Queue<T> {
    pub(super) fn push(&mut self, job: T, text: String) {
        self.jobs.push_back((job, text));
    }

    pub(super) fn pop(&mut self) -> Option<(T, String)> {
        self.jobs.pop_front()
    }

    pub(super) fn first(&self) -> Option<&T> {
        self.jobs.front().map(|(job, _)| job)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.jobs.iter().map(|(job, _)| job)
    }

    pub(super) fn texts(&self) -> Vec<String> {
        self.jobs.iter().map(|(_, text)| text.clone()).collect()
    }

    /// What a transcript adds to the line of a job that will have to wait.
    pub(super) fn suffix(&self) -> &'static str {
        if self.held { " (held)" } else { "" }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}

impl Member {
    pub(super) fn new(id: MemberId, disk: Disk) -> Self {
        Self {
            config: Config { seed: id.0, ..Config::new(id) },
            raft: None,
            boot: Boot::empty(),
            synced: disk.clone(),
            disk,
            saves: Queue::default(),
            applies: Queue::default(),
            loads: Queue::default(),
            stepped: false,
            commit_shown: 0,
            settled: None,
            disowned: None,
        }
    }

    /// Starts from what the disk holds; the reason is given when that fails.
    pub(super) fn start(&mut self, tail: Option<usize>) -> Result<(), String> {
        self.raft = None;
        self.stepped = false;
        self.settled = None;
        self.disowned = None;
        self.boot = self.disk.boot(tail);
        let raft = Raft::new(self.config.clone(), self.boot.clone());
        let raft = raft.map_err(|why| why.to_string())?;
        self.commit_shown = raft.status().log.commit;
        self.raft = Some(raft);
        Ok(())
    }

    /// Loses what was not done. What no one waited for may be lost as well.
    pub(super) fn crash(&mut self, unsynced: Unsynced) {
        self.raft = None;
        self.saves.jobs.clear();
        self.applies.jobs.clear();
        self.loads.jobs.clear();
        if unsynced == Unsynced::Lost {
            let applied = self.disk.applied.min(self.synced.last().index);
            self.disk = Disk { applied, ..self.synced.clone() };
        }
    }

    pub(super) fn replace_disk(&mut self, disk: Disk) {
        self.synced = disk.clone();
        self.disk = disk;
    }

    /// Puts a save on the disk.
    pub(super) fn write(&mut self, save: &Save) {
        self.disk.write(save);
        if save.must_sync {
            self.synced = self.disk.clone();
        }
    }

    pub(super) fn synced(&self) -> &Disk {
        &self.synced
    }

    /// The core and what it was started from, while it runs.
    pub(super) fn started(&self) -> Option<(&Raft, &Boot)> {
        Some((self.raft.as_ref()?, &self.boot))
    }

    /// The log as the engine sees it: the disk, and what is on its way there.
    pub(super) fn view(&self) -> Disk {
        let mut view = self.disk.clone();
        self.saves.iter().for_each(|save| view.write(save));
        view
    }

    pub(super) fn hold(&mut self, work: Work, held: bool) {
        match work {
            Work::Saves => self.saves.held = held,
            Work::Applies => self.applies.held = held,
            Work::Loads => self.loads.held = held,
        }
    }

    pub(super) fn has_work(&self, work: Work) -> bool {
        match work {
            Work::Saves => !self.saves.is_empty(),
            Work::Applies => !self.applies.is_empty(),
            Work::Loads => !self.loads.is_empty(),
        }
    }

    /// A batch waits for this save before it runs.
    pub(super) fn apply_waits(&self) -> bool {
        let after = self.applies.first().and_then(|batch| batch.after);
        after.is_some_and(|after| self.saves.iter().any(|save| save.id <= after))
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
