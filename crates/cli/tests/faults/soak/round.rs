//! One round: clients work while faults begin, last and are healed; then everything that the
//! clients have seen is checked, and the members have the same data.

use std::collections::BTreeMap;
use std::time::Duration;

use quorate_proto::etcdserverpb::CompactionRequest;

use super::fault::ActiveFault;
use super::lease_checks::LeaseChecks;
use super::members::SoakCluster;
use super::plan::RoundPlan;
use super::watchers::Watchers;
use crate::client::{retry_until_ok, wait_for, with_timeout};
use crate::restored::{copy, roll_back};
use crate::support::messages::{LOST_LOG, PEER_LOST_LOG};
use crate::workload::{CheckedHistory, Workload};

/// The keys and values of earlier rounds.
pub(crate) type Ledger = BTreeMap<String, String>;

/// What one round has done and seen.
#[derive(Default)]
pub(crate) struct RoundReport {
    pub(crate) operations: u64,
    pub(crate) unknown: u64,
    pub(crate) undecided: u64,
    pub(crate) events: u64,
    pub(crate) leases: u64,
    pub(crate) longest_gap: Duration,
    pub(crate) memory: u64,
    pub(crate) disk: u64,
}

/// Begins the keys of all rounds.
pub(crate) const PREFIX: &str = "soak/";
const CLIENTS: u64 = 5;
/// Replies that must come under the faults, and after them.
const CALLS: u64 = 100;
const ROUNDS_PER_COMPACTION: u64 = 3;

pub(crate) async fn run(
    soak: &mut SoakCluster,
    number: u64,
    plan: RoundPlan,
    ledger: &mut Ledger,
) -> RoundReport {
    let prefix = format!("{PREFIX}{number}/");
    let clients = soak.clients();
    let revision = retry_until_ok("a revision", async || clients[0].revision().await).await;
    if number.is_multiple_of(ROUNDS_PER_COMPACTION) {
        let request = CompactionRequest { revision, physical: false };
        let _ = with_timeout(clients[0].kv().compact(request)).await;
    }
    let watchers = Watchers::start(&prefix, revision + 1, &clients);
    let leases = LeaseChecks::start(&prefix, clients.clone()).await;
    let workload = Workload::start_on(&prefix, super::PAUSE, CLIENTS, clients);
    workload.wait_for_calls(CALLS).await;
    match plan {
        RoundPlan::Pair { first, second, first_hits_leader } => {
            let leader = soak.cluster.leader().await;
            let follower = soak.members.iter().copied().find(|slot| *slot != leader).unwrap();
            let [hit, other] =
                if first_hits_leader { [leader, follower] } else { [follower, leader] };
            let mut one = ActiveFault::begin(soak, first, hit).await;
            let mut two = ActiveFault::begin(soak, second, other).await;
            workload.wait_for_calls(CALLS).await;
            one.finish_joining(soak).await;
            two.finish_joining(soak).await;
            one.finish_leaving(soak).await;
            two.finish_leaving(soak).await;
            one.heal(soak).await;
            two.heal(soak).await;
        }
        RoundPlan::RestoredDisk => restore_old_disk(soak, &workload).await,
    }
    soak.wait_all_serve().await;
    workload.set_clients(soak.clients());
    workload.wait_for_calls(CALLS).await;
    check(soak, &prefix, Clients { workload, watchers, leases }, ledger).await
}

struct Clients {
    workload: Workload,
    watchers: Watchers,
    leases: LeaseChecks,
}

async fn check(
    soak: &mut SoakCluster,
    prefix: &str,
    clients: Clients,
    ledger: &mut Ledger,
) -> RoundReport {
    let history = clients.workload.judge_history().await;
    let lease_in_time = clients.leases.check(&soak.clients()[0]).await;
    let events = clients.watchers.check(prefix, &soak.clients()).await;
    assert_events(&history, &events);

    let data = soak.cluster.assert_identical_data().await;
    for (key, value) in &*ledger {
        assert_eq!(data.get(key), Some(value), "{key} of an earlier round is lost");
    }
    // The kept lease of this round is not renewed any more.
    let lasting = |key: &str| key.starts_with(PREFIX) && !key.ends_with("/kept");
    ledger.extend(data.into_iter().filter(|(key, _)| lasting(key)));
    soak.members.iter().for_each(|slot| soak.check_log(*slot));
    RoundReport {
        operations: history.operations,
        unknown: history.unknown,
        undecided: u64::from(!history.decided),
        events: events.len() as u64,
        leases: 1 + u64::from(lease_in_time),
        longest_gap: history.longest_gap,
        memory: soak.largest_memory(),
        disk: soak.largest_disk(),
    }
}

/// Every acknowledged change is an event with the revision of its reply.
fn assert_events(history: &CheckedHistory, events: &[(i64, String, String)]) {
    let by_revision: BTreeMap<i64, (&str, &str)> = events
        .iter()
        .map(|(revision, key, value)| (*revision, (key.as_str(), value.as_str())))
        .collect();
    for (revision, key, value) in &history.changes {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (key, value) = (text(key), value.as_ref().map(|value| text(value)).unwrap_or_default());
        let event = by_revision.get(revision);
        assert_eq!(event, Some(&(key.as_str(), value.as_str())), "revision {revision}");
    }
}

/// A follower returns with an older state of its disk. It is noticed, removed and added again.
async fn restore_old_disk(soak: &mut SoakCluster, workload: &Workload) {
    let leader = soak.cluster.leader().await;
    let slot = soak.members.iter().copied().find(|slot| *slot != leader).unwrap();
    let store = soak.cluster.servers[slot].data_dir.join("member");
    let backup = soak.cluster.servers[slot].data_dir.with_extension("backup");
    let _ = std::fs::remove_dir_all(&backup);
    soak.cluster.kill(slot);
    copy(&store, &backup);
    soak.restart(slot);
    soak.cluster.wait_serving(slot).await;
    workload.wait_for_calls(CALLS).await;
    soak.cluster.kill(slot);
    roll_back(&store, &backup);
    soak.restart(slot);
    let noticed = async || {
        for client in soak.clients() {
            let Ok(status) = client.status().await else { continue };
            let lost = |error: &String| error.contains(LOST_LOG) || error.contains(PEER_LOST_LOG);
            if status.errors.iter().any(lost) {
                return Some(());
            }
        }
        None
    };
    wait_for("the older state of the disk is noticed", noticed).await;
    soak.cluster.kill(slot);
    soak.remove(slot).await;
    soak.clear(slot);
    let _ = std::fs::remove_dir_all(&backup);
    soak.add(slot).await;
}
