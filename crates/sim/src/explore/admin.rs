//! The operator of a simulated cluster: requests membership changes and checks the results.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use quorate::RequestError;
use quorate::driver::{RequestOutcome, RequestReply};
use quorate_core::membership::{ChangeKind, Operation, RemovedVoters, Transition};
use quorate_core::{Change, Index, MemberId, Membership};

use super::action::ActionKind;
use super::clients::RequestKey;
use super::report::RunReport;
use super::setting::RunSettings;
use crate::random::Random;

pub(crate) struct Admin {
    /// How long a change may take before it ends as unknown.
    pub(crate) timeout: u64,
    open: HashMap<RequestKey, u64>,
    /// All requested changes, by the number in their context.
    changes: BTreeMap<u64, ChangeRecord>,
    next: u64,
    /// A goal was cancelled by request.
    pub(crate) has_cancelled: bool,
    /// When that was last requested.
    pub(crate) cancelled_at: u64,
}

/// The recorded state of a change.
#[derive(Clone, Debug, Default)]
struct ChangeRecord {
    applied: Option<Index>,
    refused: bool,
}

impl Admin {
    pub(crate) fn new(setting: &RunSettings) -> Self {
        Self {
            timeout: 40 * setting.election_ticks,
            open: HashMap::new(),
            changes: BTreeMap::new(),
            next: 0,
            has_cancelled: false,
            cancelled_at: 0,
        }
    }

    /// The change that this action requests, if it is possible now.
    pub(crate) fn change(
        &mut self,
        kind: ActionKind,
        number: u64,
        now: &Membership,
        leader: Option<MemberId>,
        new: &[MemberId],
        is_healthy: &dyn Fn(MemberId) -> bool,
    ) -> Option<Change> {
        let mut random = Random::stream(number, self.next);
        let members: Vec<MemberId> = now.members().iter().collect();
        let healthy: Vec<MemberId> = members.iter().copied().filter(|id| is_healthy(*id)).collect();
        let change = match kind {
            ActionKind::AddLearner | ActionKind::AddGhost => Change::add_learner(*new.first()?),
            ActionKind::Goal => {
                let voters = random_subset(&mut random, &healthy);
                let learners: Vec<MemberId> = (healthy.iter().copied())
                    .filter(|id| !voters.contains(id) && random.per_mille(200))
                    .collect();
                (!voters.is_empty()).then(|| Change::goal(voters, learners))?
            }
            ActionKind::GoalWithNew => {
                let mut voters = random_subset(&mut random, &healthy);
                voters.extend(new);
                Change::goal(voters, [])
            }
            ActionKind::GoalWithoutLeader => {
                let voters: Vec<MemberId> =
                    healthy.iter().copied().filter(|id| Some(*id) != leader).collect();
                (!voters.is_empty()).then(|| Change::goal(voters, []))?
            }
            ActionKind::Cancel => Change::cancel(),
            ActionKind::RawChange => {
                let operation = operation(&mut random, &members)?;
                if random.per_mille(500) { Change::v1(operation) } else { Change::new([operation]) }
            }
            ActionKind::JointImplicit | ActionKind::JointExplicit => {
                let count = random.between(1, 3);
                let operations: Vec<Operation> =
                    (0..count).filter_map(|_| operation(&mut random, &members)).collect();
                let explicit = kind == ActionKind::JointExplicit;
                let transition =
                    if explicit { Transition::JointExplicit } else { Transition::JointImplicit };
                Change::new(operations).with_transition(transition)
            }
            ActionKind::LeaveJoint => Change::leave(),
            ActionKind::SetVoters => {
                let voters = random_subset(&mut random, &healthy);
                if voters.is_empty() {
                    return None;
                }
                let removed = if random.per_mille(500) {
                    RemovedVoters::BecomeLearners
                } else {
                    RemovedVoters::Leave
                };
                Change::set_voters(voters, removed)
            }
            _ => return None,
        };
        Some(if random.per_mille(100) { change.expecting(now.since()) } else { change })
    }

    /// Adds a number to the context of a change, to identify it in the log.
    pub(crate) fn number(&mut self, change: Change, now: u64) -> (u64, Change) {
        self.next += 1;
        if matches!(change.kind, ChangeKind::Cancel) {
            (self.has_cancelled, self.cancelled_at) = (true, now);
        }
        self.changes.insert(self.next, ChangeRecord::default());
        let context = Bytes::copy_from_slice(&self.next.to_le_bytes());
        (self.next, change.with_context(context))
    }

    pub(crate) fn on_submitted(&mut self, key: RequestKey, number: u64) {
        self.open.insert(key, number);
    }

    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// A change is committed. A refused change must never be.
    pub(crate) fn applied(&mut self, index: Index, context: &[u8]) -> Result<(), String> {
        let Ok(number) = context.try_into().map(u64::from_le_bytes) else { return Ok(()) };
        let Some(record) = self.changes.get_mut(&number) else { return Ok(()) };
        if record.refused {
            return Err(format!("change {number} was refused but is committed at {index}"));
        }
        match record.applied.replace(index) {
            Some(first) if first != index => {
                Err(format!("change {number} is committed at {first} and at {index}"))
            }
            _ => Ok(()),
        }
    }

    /// The reply to a change; None if the request is not a change of this operator.
    pub(crate) fn answered(
        &mut self,
        key: RequestKey,
        outcome: &RequestOutcome,
        report: &mut RunReport,
    ) -> Option<Result<(), String>> {
        let number = self.open.remove(&key)?;
        let record = self.changes.entry(number).or_default();
        Some(match outcome {
            Ok(RequestReply::Changed { .. } | RequestReply::GoalEnded(_)) => {
                report.changes_done += 1;
                match record.applied {
                    Some(_) => Ok(()),
                    None => Err(format!("change {number} is done but not committed")),
                }
            }
            Ok(_) => Ok(()),
            Err(RequestError::Refused(_)) => {
                report.changes_refused += 1;
                record.refused = true;
                match record.applied {
                    Some(index) => {
                        Err(format!("change {number} is refused but committed at {index}"))
                    }
                    None => Ok(()),
                }
            }
            Err(RequestError::Unknown(_)) => {
                report.changes_unknown += 1;
                Ok(())
            }
        })
    }

    /// A member died: the operator gets no reply.
    pub(crate) fn lost(&mut self, place: usize, run: u64) {
        self.open.retain(|key, _| (key.0, key.1) != (place, run));
    }
}

fn random_subset(random: &mut Random, from: &[MemberId]) -> Vec<MemberId> {
    let count = random.between(1, 5) as usize;
    let mut left = from.to_vec();
    let mut chosen = Vec::new();
    while chosen.len() < count && !left.is_empty() {
        chosen.push(left.swap_remove(random.below(left.len() as u64) as usize));
    }
    chosen
}

fn operation(random: &mut Random, members: &[MemberId]) -> Option<Operation> {
    let id = *random.pick(members)?;
    Some(match random.below(4) {
        0 => Operation::Voter(id),
        1 => Operation::Learner(id),
        2 => Operation::Remove(id),
        _ => Operation::Update(id),
    })
}
