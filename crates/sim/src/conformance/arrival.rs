//! `add-nodes`: new members, started as the trace describes them.

use std::sync::Arc;

use quorate_core::config::ReadMode;
use quorate_core::{Config, EntryId, Index, MemberId, Membership, SnapshotMeta};

use super::file::{Argument, number};
use super::interaction::TraceCommandError;
use super::member::TraceMember;
use super::world::TraceWorld;

/// How the new members are to be.
struct Arrival {
    count: u64,
    voters: Vec<MemberId>,
    learners: Vec<MemberId>,
    index: Index,
    content: String,
    /// Saves and applies are done by threads of their own.
    threads: bool,
    /// The same for all of them but for the id.
    config: Config,
}

/// A trace with more members than this was not recorded.
const MEMBERS_MAX: u64 = 100;

const ELECTION_TICKS: u32 = 3;
const HEARTBEAT_TICKS: u32 = 1;

pub(super) fn add(world: &mut TraceWorld, arguments: &[Argument]) -> Result<(), TraceCommandError> {
    let arrival = Arrival::parse(arguments)?;
    if arrival.count + world.ids().len() as u64 > MEMBERS_MAX {
        return Err(TraceCommandError::Stops(format!("expected at most {MEMBERS_MAX} members")));
    }
    let snapshot = arrival.snapshot()?;
    let content = || arrival.content.clone().into_bytes();
    world.shared.contents.entry(snapshot.id).or_insert_with(content);
    for _ in 0..arrival.count {
        let mut config = arrival.config.clone();
        config.id = world.next_id();
        let (threads, snapshot) = (arrival.threads, snapshot.clone());
        let member = TraceMember::new(config, threads, snapshot, &mut world.shared)?;
        world.add(member);
    }
    Ok(())
}

impl Arrival {
    fn parse(arguments: &[Argument]) -> Result<Self, String> {
        let Some((count, named)) = arguments.split_first() else {
            return Err("expected a number of members".to_owned());
        };
        let mut config = Config::etcd(MemberId(1));
        config.election_ticks = ELECTION_TICKS;
        config.heartbeat_ticks = HEARTBEAT_TICKS;
        let mut arrival = Self {
            count: number(&count.key)?,
            voters: Vec::new(),
            learners: Vec::new(),
            index: 0,
            content: String::new(),
            threads: false,
            config,
        };
        for argument in named {
            arrival.read(argument)?;
        }
        arrival.config.apply_unsaved = !arrival.threads;
        Ok(arrival)
    }

    fn read(&mut self, argument: &Argument) -> Result<(), String> {
        let config = &mut self.config;
        match argument.key.as_str() {
            "voters" => self.voters = argument.numbers()?.into_iter().map(MemberId).collect(),
            "learners" => self.learners = argument.numbers()?.into_iter().map(MemberId).collect(),
            "index" => self.index = argument.number()?,
            "content" => self.content = argument.value()?.to_owned(),
            "async-storage-writes" => self.threads = argument.boolean()?,
            "inflight" => {
                config.inflight_messages_max = u32::try_from(argument.number()?)
                    .map_err(|_| "argument `inflight` is out of range".to_owned())?;
            }
            "prevote" => config.pre_vote = argument.boolean()?,
            "checkquorum" => config.check_quorum = argument.boolean()?,
            "step-down-on-removal" => config.step_down_on_removal = argument.boolean()?,
            "max-committed-size-per-ready" => {
                // Zero stands for the limit of a message, and there is none.
                config.apply_bytes_max = match argument.number()? {
                    0 => u64::MAX,
                    bytes => bytes,
                };
            }
            "read-only" => {
                config.reads = match argument.value()? {
                    "safe" => ReadMode::Quorum,
                    "lease-based" => ReadMode::LeaderLease { drift_ticks: 0 },
                    other => {
                        return Err(format!("read-only `{other}`, expected safe or lease-based"));
                    }
                }
            }
            _ => return Err(argument.unknown()),
        }
        Ok(())
    }

    /// What the members start from; at index 0 from nothing.
    fn snapshot(&self) -> Result<SnapshotMeta, TraceCommandError> {
        let empty = self.voters.is_empty() && self.learners.is_empty() && self.content.is_empty();
        if self.index == 0 && empty {
            return Ok(SnapshotMeta::default());
        }
        if self.index <= 1 {
            let text = "index must be specified as > 1 due to bootstrap";
            return Err(TraceCommandError::Prints(text.to_owned()));
        }
        let membership = Membership::new(self.voters.clone(), self.learners.clone());
        Ok(SnapshotMeta { id: EntryId::new(1, self.index), membership: Arc::new(membership) })
    }
}
