//! A machine and its clients, tried in simulated worlds.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use quorate::{Machine, MemoryKv};

use super::etcd::{self, EtcdClients, EtcdWorld};
use super::kv_workload::KvWorkload;
use super::replay::RunReplay;
use super::report::RunReport;
use super::setting::{self, RunSettings};
use super::shrink::shrink_with;
use super::simulation::{SimEvent, Simulation};
use super::workload::Workload;
use super::{Action, RunOutcome, Trace};
use crate::checkers::{Checked, Violation};

/// Makes a machine in its first state.
pub(crate) type MakeMachine = Rc<dyn Fn() -> Box<dyn Machine>>;

/// Makes what is asked in one run.
type MakeWorkload = Box<dyn Fn(&RunSettings) -> Box<dyn Workload>>;

/// What runs on the members of a world, and what is asked of it.
pub struct MachineTrial {
    machine: MakeMachine,
    workload: MakeWorkload,
    /// The setting chooses the machine.
    by_setting: bool,
}

/// Tries a machine in the worlds of these seeds, until a rule is broken.
///
/// Members crash, lose messages and disks, and are replaced, as in `quorate-sim explore`;
/// everything that is checked there is checked here (docs/simulator.md). Besides, for any
/// machine: answers are linearizable and are those that running the log again gives; members
/// that ran the same log are in the same state; and a machine made of a snapshot is the one
/// that was captured. States are compared by the bytes of their snapshots.
///
/// ```
/// use bytes::Bytes;
/// use quorate::{BadSnapshot, Machine, MachineError, SnapshotChunks};
/// use quorate_sim::explore::{Workload, try_machine};
/// use quorate_sim::random::Random;
///
/// /// Adds up the bytes that it is given.
/// #[derive(Default)]
/// struct Sum(u64);
///
/// impl Machine for Sum {
///     fn apply(&mut self, _index: u64, command: &Bytes) -> Result<Bytes, MachineError> {
///         self.0 += command.iter().map(|byte| u64::from(*byte)).sum::<u64>();
///         self.query(command)
///     }
///
///     fn query(&self, _question: &Bytes) -> Result<Bytes, MachineError> {
///         Ok(Bytes::copy_from_slice(&self.0.to_le_bytes()))
///     }
///
///     fn snapshot(&self) -> Result<SnapshotChunks, MachineError> {
///         Ok(Box::new(std::iter::once(Ok(Bytes::copy_from_slice(&self.0.to_le_bytes())))))
///     }
///
///     fn install(&mut self, chunks: &mut dyn Iterator<Item = Bytes>) -> Result<(), MachineError> {
///         let chunk = chunks.next().ok_or(BadSnapshot)?;
///         self.0 = u64::from_le_bytes(chunk[..].try_into().map_err(|_| BadSnapshot)?);
///         Ok(())
///     }
/// }
///
/// struct Additions;
///
/// impl Workload for Additions {
///     fn command(&mut self, random: &mut Random) -> Bytes {
///         Bytes::from(vec![random.below(100) as u8])
///     }
///
///     fn query(&mut self, _random: &mut Random) -> Bytes {
///         Bytes::new()
///     }
/// }
///
/// let report = try_machine(0..5, Sum::default, || Additions).unwrap();
/// assert_eq!(report.schedules, 5);
/// ```
pub fn try_machine<M: Machine + 'static, W: Workload + 'static>(
    seeds: Range<u64>,
    machine: impl Fn() -> M + 'static,
    workload: impl Fn() -> W + 'static,
) -> Result<RunReport, Box<TrialFailure>> {
    let trial = MachineTrial::new(machine, workload);
    let mut all = RunReport::default();
    for seed in seeds {
        let replay = RunReplay::of_seed(seed);
        let outcome = trial.run(&replay.setting, &replay.actions);
        if let Some(violation) = outcome.violation {
            let replay = trial.shrink(&replay, violation.rule, SHRINK_TRIES);
            return Err(Box::new(TrialFailure { seed, violation, replay }));
        }
        all.add(&outcome.report);
    }
    Ok(all)
}

const SHRINK_TRIES: usize = 300;

/// A world in which a rule was broken.
#[derive(Clone, Debug)]
pub struct TrialFailure {
    pub seed: u64,
    pub violation: Violation,
    /// A short run in which the same rule is broken: for [`MachineTrial::run`].
    pub replay: RunReplay,
}

impl fmt::Display for TrialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, violation, replay } = self;
        let actions = replay.actions.len();
        write!(f, "seed {seed}: {violation}; shortened to {actions} actions:\n{replay}")
    }
}

impl std::error::Error for TrialFailure {}

impl MachineTrial {
    /// Each member runs a machine made by `machine`, each run has a workload made by
    /// `workload`.
    pub fn new<M: Machine + 'static, W: Workload + 'static>(
        machine: impl Fn() -> M + 'static,
        workload: impl Fn() -> W + 'static,
    ) -> Self {
        Self {
            machine: Rc::new(move || Box::new(machine())),
            workload: Box::new(move |_| Box::new(workload())),
            by_setting: false,
        }
    }

    /// The small map or etcd's data model, and its clients.
    pub(crate) fn of_setting() -> Self {
        Self {
            machine: Rc::new(|| Box::<MemoryKv>::default()),
            workload: Box::new(|setting| match setting.etcd {
                0 => Box::new(KvWorkload::new(setting)),
                _ => Box::<EtcdClients>::default(),
            }),
            by_setting: true,
        }
    }

    /// Plays one run from beginning to end. A panic of the code under test is a violation
    /// like any other.
    pub fn run(&self, setting: &RunSettings, actions: &[Action]) -> RunOutcome {
        self.run_traced(setting, actions, None)
    }

    /// The same, and every event is printed with its time.
    pub fn run_traced(
        &self,
        setting: &RunSettings,
        actions: &[Action],
        trace: Option<Trace>,
    ) -> RunOutcome {
        let mut world =
            Simulation::new(setting, Rc::clone(&self.machine), (self.workload)(setting));
        if !self.by_setting {
            // A machine may keep its state elsewhere, where it is not rolled back with the log.
            (world.setting.rollback, world.setting.forced) = (0, 0);
        }
        if self.by_setting && setting.etcd == 1 {
            world.machine = Rc::new(|| Box::new(etcd::empty_store()));
            world.etcd = Some(EtcdWorld::new(setting));
        }
        world.trace = trace;
        let workload = || (self.workload)(setting);
        let played = catch_unwind(AssertUnwindSafe(|| play(&mut world, actions, &workload)));
        let violation = match played {
            Ok(checked) => checked.err(),
            Err(panic) => Some(Violation::of_panic(panic.as_ref())),
        };
        let mut report = world.report.clone();
        report.schedules = 1;
        report.ticks = world.now / setting::TICK;
        report.requests_done = world.clients.done;
        report.requests_refused = world.clients.refused;
        report.requests_unknown = world.clients.unknown;
        report.elections = world.invariants.elections();
        // The first one was not committed by anybody.
        report.memberships = (world.invariants.memberships().count() as u64).saturating_sub(1);
        RunOutcome { report, violation, ended: world.now }
    }

    /// Leaves out whatever is not needed for the same rule to be broken, in at most so
    /// many tries.
    pub fn shrink(&self, replay: &RunReplay, rule: &'static str, tries_max: usize) -> RunReplay {
        let run = |replay: &RunReplay| self.run(&replay.setting, &replay.actions);
        shrink_with(&run, replay, rule, tries_max)
    }
}

fn play(
    world: &mut Simulation,
    actions: &[Action],
    workload: &dyn Fn() -> Box<dyn Workload>,
) -> Checked {
    world.begin()?;
    for action in actions {
        world.schedule(action.at, SimEvent::Act(*action));
    }
    world.run_until(world.setting.ticks * setting::TICK)?;
    world.heal()?;
    if world.setting.forced == 1 && world.report.healed == 1 {
        world.force_new_cluster(workload())?;
    }
    Ok(())
}
