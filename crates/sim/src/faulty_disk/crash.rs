//! The disk contents after a crash: one possible image at random, or all of them.

use std::collections::BTreeSet;

use super::{Fault, FaultyDisk, NameChange};
use crate::random::Random;

impl FaultyDisk {
    /// Simulates a power loss. The random generator decides which unsynced writes
    /// survive: sometimes all, sometimes none, usually some.
    pub fn crash(&mut self, random: &mut Random) {
        match random.below(4) {
            0 => self.crash_with(|_| 0),
            1 => self.crash_with(|options| options - 1),
            _ => self.crash_with(|options| random.below(u64::from(options)) as u32),
        }
        self.faults.count(Fault::Crash);
    }

    /// Every disk image that a crash at this moment could leave.
    pub fn crash_images(&self) -> CrashImages<'_> {
        CrashImages { disk: self, path: Some(Vec::new()), seen: BTreeSet::new(), tried: 0 }
    }

    /// Simulates a power loss. `choose` gets a number of options and returns the one to
    /// take. The first option is always the synced state, the last the written state.
    fn crash_with(&mut self, mut choose: impl FnMut(u32) -> u32) {
        let mut names = std::mem::take(&mut self.durable_names);
        for change in std::mem::take(&mut self.pending) {
            if choose(2) == 0 {
                continue;
            }
            match change {
                NameChange::Set(name, inode) => {
                    names.insert(name, inode);
                }
                NameChange::Rename(from, to, inode) => {
                    names.retain(|name, target| *name != from || *target != inode);
                    names.insert(to, inode);
                }
                NameChange::Remove(name, inode) => {
                    names.retain(|other, target| *other != name || *target != inode);
                }
            }
        }
        let linked: BTreeSet<u64> = names.values().copied().collect();
        self.inodes.retain(|id, _| linked.contains(id));
        self.inodes.values_mut().for_each(|inode| inode.choose(&mut choose));
        self.names.clone_from(&names);
        self.durable_names = names;
        self.operations_left = None;
    }
}

/// Enumerates all disk images that a crash could leave. Walks the tree of choices depth
/// first and returns byte-identical images only once.
#[derive(Debug)]
pub struct CrashImages<'a> {
    disk: &'a FaultyDisk,
    /// The next path: each choice with its number of options. None at the end.
    path: Option<Vec<(u32, u32)>>,
    seen: BTreeSet<u64>,
    tried: u64,
}

impl CrashImages<'_> {
    /// The number of paths tried so far, including those with identical images.
    pub fn tried(&self) -> u64 {
        self.tried
    }

    fn next_path(&mut self) -> Option<FaultyDisk> {
        let mut path = self.path.take()?;
        let mut image = self.disk.clone();
        let mut depth = 0;
        image.crash_with(|options| {
            if depth == path.len() {
                path.push((0, options));
            }
            depth += 1;
            path[depth - 1].0
        });
        self.tried += 1;
        while let Some((chosen, options)) = path.pop() {
            if chosen + 1 < options {
                path.push((chosen + 1, options));
                self.path = Some(path);
                break;
            }
        }
        Some(image)
    }
}

impl Iterator for CrashImages<'_> {
    type Item = FaultyDisk;

    fn next(&mut self) -> Option<FaultyDisk> {
        loop {
            let image = self.next_path()?;
            if self.seen.insert(fingerprint(&image)) {
                return Some(image);
            }
        }
    }
}

/// A hash of names and contents. Optimized for speed: it reads every byte of every image.
fn fingerprint(disk: &FaultyDisk) -> u64 {
    let mut hash = 0u64;
    let mut add = |word: u64| {
        hash = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
    };
    for (name, bytes) in disk.files() {
        add(name.len() as u64);
        add(bytes.len() as u64);
        for part in [name.as_bytes(), bytes] {
            let mut words = part.chunks_exact(8);
            for word in words.by_ref() {
                add(word.try_into().map_or(0, u64::from_le_bytes));
            }
            words.remainder().iter().for_each(|byte| add(u64::from(*byte)));
        }
    }
    hash
}
