//! What a cluster replicates: the one trait that an embedder implements.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use quorate_core::{Index, Membership};
use quorate_storage::StoreIdentity;

/// A state machine. Every member runs the same commands in the same order, so everything
/// here must be deterministic: it must not depend on a clock, on random numbers, on the
/// order of a hash map, or on anything else of the process that it runs in.
///
/// A counter: a command adds to it, and any query returns it.
/// ```
/// use bytes::Bytes;
/// use quorate::{BadSnapshot, Index, Machine, MachineError, SnapshotChunks};
///
/// #[derive(Default)]
/// struct Counter(u64);
///
/// impl Machine for Counter {
///     fn apply(&mut self, _index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
///         // A command that is not a number adds nothing, on every member alike.
///         let number = command[..].try_into().map_or(0, u64::from_le_bytes);
///         self.0 = self.0.wrapping_add(number);
///         self.query(command)
///     }
///
///     fn query(&self, _query: &Bytes) -> Result<Bytes, MachineError> {
///         Ok(Bytes::copy_from_slice(&self.0.to_le_bytes()))
///     }
///
///     fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
///         Ok(Box::new(std::iter::once(Ok(Bytes::copy_from_slice(&self.0.to_le_bytes())))))
///     }
///
///     fn check_snapshot(chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
///         Self::default().install(chunks)
///     }
///
///     fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
///         let chunk = chunks.next().ok_or(BadSnapshot)?;
///         self.0 = chunk[..].try_into().map(u64::from_le_bytes).map_err(|_| BadSnapshot)?;
///         Ok(())
///     }
/// }
///
/// let mut counter = Counter::default();
/// counter.apply(1, &Bytes::copy_from_slice(&5u64.to_le_bytes()))?;
/// let mut copy = Counter::default();
/// let chunks = counter.snapshot()?.collect::<Result<Vec<Bytes>, _>>()?;
/// copy.install(&mut chunks.into_iter())?;
/// assert_eq!(copy.0, 5);
/// # Ok::<(), MachineError>(())
/// ```
///
/// `TypedMachine` (feature `typed`) is the same with serde types instead of bytes.
/// `quorate_sim::explore::try_machine` runs your machine in simulated clusters and checks that
/// it is deterministic: see the crate's front page.
///
/// # Failures
/// A command that is invalid is not a failure: return a reply that says so, the same on every
/// member. Return an error only when this member cannot continue, for example because the
/// machine's own disk failed. The member then stops, and reports the error to open requests
/// and through `Node::wait_stopped`. No command runs on the machine after an error.
///
/// # New kinds of commands
/// A member with an older program does not know them, and would skip what others run. So each
/// program says which cluster versions it supports
/// ([`NodeConfig::versions`](crate::NodeConfig)); the leader raises the cluster version once all
/// members support a higher one; and a command of version 2 is proposed only while
/// `Node::cluster_version` is 2 or more. A downgrade may lower the version while such a command is
/// on its way, so the machine checks again, and refuses it on every member alike:
/// ```
/// # use quorate::{MachineError, UnsupportedVersion, VersionRange};
/// # use bytes::Bytes;
/// # struct Counter { version: u32 }
/// # const SUPPORTED: VersionRange = VersionRange::new(1, 1);
/// # impl Counter {
/// # fn run(&mut self, _command: &[u8]) -> Bytes { Bytes::new() }
/// // The first byte of a command is the version that it needs.
/// fn apply(&mut self, command: &Bytes) -> Result<Bytes, MachineError> {
///     match command.split_first() {
///         // `on_cluster_version` has set `self.version`.
///         Some((needs, _)) if u32::from(*needs) > self.version => Ok("too early".into()),
///         // Every member of such a cluster knows it, except this one.
///         Some((needs, _)) if u32::from(*needs) > SUPPORTED.max => {
///             Err(UnsupportedVersion { needs: u32::from(*needs), supported: SUPPORTED }.into())
///         }
///         Some((_, command)) => Ok(self.run(command)),
///         None => Ok("not a command".into()),
///     }
/// }
/// # }
/// ```
/// The member stops with the version that it needs, and continues from the same disk when it is
/// started with a program that supports it. A snapshot is written in the format of the cluster
/// version, not in the newest one: it may be sent to members with an older program.
pub trait Machine {
    /// A member starts. `owner` identifies it; the returned index is the newest entry whose
    /// effect the machine has already. Called once, before everything else.
    ///
    /// Only for a machine that keeps its state on a disk: any other one returns 0, and is
    /// restored from the newest snapshot and the log. A machine that returns more continues
    /// from there: commands up to that entry do not run again, and only a newer snapshot is
    /// installed. So the index has to be saved together with the state, in one atomic write.
    /// The saved state may be old: the log has the rest.
    ///
    /// State that was saved for another owner must not be used: drop it and return 0.
    fn resume(&mut self, _owner: &StoreIdentity) -> Result<Index, MachineError> {
        Ok(0)
    }

    /// Makes durable what the machine keeps on its own disk. Called when a snapshot is
    /// captured, after which the log may be trimmed, and when the member stops. A machine may
    /// ignore the call; the next start then takes longer.
    fn save(&mut self) -> Result<(), MachineError> {
        Ok(())
    }

    /// Where to report progress within a command or an installation that takes long: more than
    /// an election timeout, say. Without reports, a machine that is busy for
    /// [`Config::stall_timeouts`](quorate_core::Config::stall_timeouts) counts as one that
    /// stands still, and a leader hands over. Called once, before the first command.
    fn report_progress_to(&mut self, _progress: WorkProgress) {}

    /// The next commands with their entries, in order. Some of them may not run. Only a hint, which must have
    /// no effect: a machine may fetch what they need from memory, since waiting for several of them
    /// takes no longer than for one.
    fn prepare(&mut self, _commands: &[(Index, &[u8])]) {}

    /// Runs one command and returns the reply for its proposer.
    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError>;

    /// Runs one command whose proposer waits at another member, so that nobody needs the reply
    /// here. The effect must be that of [`Machine::apply`]. For machines whose replies take time
    /// to make.
    fn apply_without_reply(&mut self, index: Index, command: &Bytes) -> Result<(), MachineError> {
        self.apply(index, command).map(drop)
    }

    /// Answers a query without changing anything.
    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError>;

    /// The membership after this entry, for machines that mirror it. After a start it is
    /// called again for memberships that the machine may have seen before.
    fn on_membership(&mut self, _index: Index, _membership: &Membership) {}

    /// The cluster version from this entry on. Called when it changes and with every snapshot;
    /// before the first call it is 1. After a start it is called again for versions that the
    /// machine may have seen before.
    fn on_cluster_version(&mut self, _index: Index, _version: u32) {}

    /// The whole state as it is now, in chunks of any size. The iterator must keep showing
    /// this state while further commands are applied.
    fn snapshot(&self) -> Result<SnapshotChunks, MachineError>;

    /// Whether these are the bytes of a complete snapshot that [`Machine::install`] would
    /// accept. A snapshot that a peer sends is checked by this while it arrives, before it
    /// replaces anything: without the check, a member that received bad bytes in its leader's
    /// name could never start again. It runs beside the machine, on a thread of its own.
    ///
    /// The default accepts everything. Where a machine is cheap to make, install the chunks in
    /// a new one.
    fn check_snapshot(chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError>
    where
        Self: Sized,
    {
        chunks.for_each(drop);
        Ok(())
    }

    /// How a snapshot that a peer sends is read while it arrives, before it replaces anything. The
    /// loader runs beside the machine, on a thread of its own, and gets all chunks. It must
    /// return an error where [`Machine::install`] would.
    ///
    /// The default checks the chunks by [`Machine::check_snapshot`], and the machine installs
    /// them from the disk later. A machine that keeps its state in memory can load it while it
    /// arrives instead, and take it over in [`Machine::install_loaded`]: a new member is then
    /// complete much sooner.
    fn snapshot_loader(&self) -> SnapshotLoader
    where
        Self: Sized + 'static,
    {
        Box::new(|chunks| Self::check_snapshot(chunks).map(|()| None))
    }

    /// Replaces the state by one that the loader of this machine returned. Called instead of
    /// [`Machine::install`].
    fn install_loaded(&mut self, _state: LoadedState) -> Result<(), MachineError> {
        Err(BadSnapshot.into())
    }

    /// Replaces the state by one that [`Machine::snapshot`] captured, here or on another
    /// member. Return [`BadSnapshot`] when the bytes are not such a snapshot.
    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError>;
}

/// A machine that is chosen when the program runs.
impl<M: Machine + ?Sized> Machine for Box<M> {
    fn resume(&mut self, owner: &StoreIdentity) -> Result<Index, MachineError> {
        (**self).resume(owner)
    }

    fn save(&mut self) -> Result<(), MachineError> {
        (**self).save()
    }

    fn report_progress_to(&mut self, progress: WorkProgress) {
        (**self).report_progress_to(progress);
    }

    fn prepare(&mut self, commands: &[(Index, &[u8])]) {
        (**self).prepare(commands);
    }

    fn apply(&mut self, index: Index, command: &Bytes) -> Result<Bytes, MachineError> {
        (**self).apply(index, command)
    }

    fn apply_without_reply(&mut self, index: Index, command: &Bytes) -> Result<(), MachineError> {
        (**self).apply_without_reply(index, command)
    }

    fn query(&self, query: &Bytes) -> Result<Bytes, MachineError> {
        (**self).query(query)
    }

    fn on_membership(&mut self, index: Index, membership: &Membership) {
        (**self).on_membership(index, membership);
    }

    fn on_cluster_version(&mut self, index: Index, version: u32) {
        (**self).on_cluster_version(index, version);
    }

    fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
        (**self).snapshot()
    }

    fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
        (**self).install(chunks)
    }
}

/// Counts steps of a machine's work. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct WorkProgress(Arc<AtomicU64>);

impl WorkProgress {
    /// One more step is done. Cheap: call it for every thousand keys, or for each.
    pub fn advance(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of steps so far.
    pub fn steps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a machine cannot continue. Any error, or a text: `Err("disk is full".into())`.
pub type MachineError = Box<dyn Error + Send + Sync>;

/// The parts of a snapshot, in order. An error means that the machine cannot read its state: the
/// snapshot is dropped, and the member stops.
pub type SnapshotChunks = Box<dyn Iterator<Item = Result<Bytes, MachineError>> + Send>;

/// Reads the chunks of a snapshot: see [`Machine::snapshot_loader`].
pub type SnapshotLoader = Box<
    dyn Fn(&mut dyn Iterator<Item = Bytes>) -> Result<Option<LoadedState>, MachineError>
        + Send
        + Sync,
>;

/// The state of a machine that was loaded from a snapshot.
pub struct LoadedState(Box<dyn Any + Send>);

impl LoadedState {
    /// Any value that [`Machine::install_loaded`] can take over.
    pub fn new(state: impl Any + Send) -> Self {
        Self(Box::new(state))
    }

    /// The value, if it has this type.
    pub fn downcast<T: Any>(self) -> Option<T> {
        self.0.downcast().ok().map(|state| *state)
    }
}

impl fmt::Debug for LoadedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedState").finish_non_exhaustive()
    }
}

/// The bytes are not a snapshot of this machine. The member cannot continue: find out which
/// version wrote them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadSnapshot;

impl fmt::Display for BadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a snapshot of this state machine")
    }
}

impl Error for BadSnapshot {}

/// The state machine returned an error, after which its member cannot continue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MachineFailed {
    /// The newest entry that was given to the machine, which may be the one that it failed to
    /// run.
    pub index: Index,
    /// What the machine returned.
    pub error: Arc<dyn Error + Send + Sync>,
}

impl MachineFailed {
    pub(crate) fn new(index: Index, error: MachineError) -> Self {
        Self { index, error: error.into() }
    }
}

impl fmt::Display for MachineFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the state machine failed at entry {}: {}", self.index, self.error)
    }
}

impl Error for MachineFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a reply only if it is asked for one.
    struct Replies(u32);

    impl Machine for Replies {
        fn apply(&mut self, _: Index, _: &Bytes) -> Result<Bytes, MachineError> {
            self.0 += 1;
            Ok(Bytes::new())
        }

        fn apply_without_reply(&mut self, _: Index, _: &Bytes) -> Result<(), MachineError> {
            Ok(())
        }

        fn query(&self, _: &Bytes) -> Result<Bytes, MachineError> {
            Ok(self.0.to_string().into())
        }

        fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
            Ok(Box::new(std::iter::empty()))
        }

        fn install(&mut self, _: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
            Ok(())
        }
    }

    #[test]
    fn a_boxed_machine_makes_no_reply_that_nobody_needs() {
        let mut boxed: Box<dyn Machine> = Box::new(Replies(0));
        boxed.apply(1, &Bytes::new()).unwrap();
        boxed.apply_without_reply(2, &Bytes::new()).unwrap();
        assert_eq!(boxed.query(&Bytes::new()).unwrap(), "1");
    }
}
