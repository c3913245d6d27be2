//! `add-nodes`: starts new members with the settings of the trace.

use std::sync::Arc;

use quorate_core::config::ReadMode;
use quorate_core::{Config, EntryId, Index, MemberId, Membership, SnapshotMeta};

use super::cluster::TraceCluster;
use super::file::{Argument, number};
use super::interaction::TraceError;
use super::member::TraceMember;

/// The settings of the new members.
struct NewMembers {
    count: u64,
    voters: Vec<MemberId>,
    learners: Vec<MemberId>,
    index: Index,
    content: String,
    /// Saves and applies run on separate threads.
    threads: bool,
    /// The same for all of them except for the id.
    config: Config,
}

/// No recorded trace has more members than this.
const MEMBERS_MAX: u64 = 100;

const ELECTION_TICKS: u32 = 3;
const HEARTBEAT_TICKS: u32 = 1;

pub(super) fn add(cluster: &mut TraceCluster, arguments: &[Argument]) -> Result<(), TraceError> {
    let new = NewMembers::parse(arguments)?;
    if new.count + cluster.ids().len() as u64 > MEMBERS_MAX {
        return Err(TraceError::Stops(format!("want at most {MEMBERS_MAX} members")));
    }
    let snapshot = new.snapshot()?;
    let content = cluster.contents.entry(snapshot.id);
    let content = content.or_insert_with(|| new.content.clone().into_bytes()).clone();
    for _ in 0..new.count {
        let config = Config { id: cluster.next_id(), ..new.config.clone() };
        let member = TraceMember::new(config, new.threads, snapshot.clone(), content.clone())?;
        cluster.add(member);
    }
    Ok(())
}

impl NewMembers {
    fn parse(arguments: &[Argument]) -> Result<Self, String> {
        let Some((count, named)) = arguments.split_first() else {
            return Err("want a number of members".to_owned());
        };
        let mut new = Self {
            count: number(&count.key)?,
            voters: Vec::new(),
            learners: Vec::new(),
            index: 0,
            content: String::new(),
            threads: false,
            config: Config {
                election_ticks: ELECTION_TICKS,
                heartbeat_ticks: HEARTBEAT_TICKS,
                ..Config::etcd(MemberId(1))
            },
        };
        for argument in named {
            new.read(argument)?;
        }
        new.config.apply_unsaved = !new.threads;
        Ok(new)
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
                // Zero means the limit of a message, and there is none.
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

    /// The snapshot from which the members start; none at index 0.
    fn snapshot(&self) -> Result<SnapshotMeta, TraceError> {
        let empty = self.voters.is_empty() && self.learners.is_empty() && self.content.is_empty();
        if self.index == 0 && empty {
            return Ok(SnapshotMeta::default());
        }
        if self.index <= 1 {
            let text = "index must be specified as > 1 due to bootstrap";
            return Err(TraceError::Prints(text.to_owned()));
        }
        let membership = Membership::new(self.voters.clone(), self.learners.clone());
        Ok(SnapshotMeta { id: EntryId::new(1, self.index), membership: Arc::new(membership) })
    }
}
