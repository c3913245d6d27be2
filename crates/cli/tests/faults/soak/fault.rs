//! Faults that last until they are healed.

use std::sync::Arc;
use std::time::Duration;

use quorate_proto::etcdserverpb::MoveLeaderRequest;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use tokio::task::JoinHandle;

use super::heavy;
use super::members::SoakCluster;
use super::plan::Kind;
use crate::client::{FaultClient, within};
use crate::faulty_disk::{self, DiskFault};
use crate::network::TestNetwork;

/// A fault that has begun.
pub(crate) struct ActiveFault {
    kind: Kind,
    /// The member that is affected.
    slot: usize,
    /// The other members when it began. A member that is replaced meanwhile is one of them.
    others: Vec<usize>,
    /// What repeats until it is aborted.
    task: Option<JoinHandle<()>>,
    /// The slot of the joining member of a change, if the change was accepted.
    joining: Option<usize>,
}

impl ActiveFault {
    pub(crate) async fn begin(soak: &mut SoakCluster, kind: Kind, slot: usize) -> Self {
        let others: Vec<usize> = soak.members.iter().copied().filter(|m| *m != slot).collect();
        let mut fault = Self { kind, slot, others: others.clone(), task: None, joining: None };
        let server = &soak.cluster.servers[slot];
        let network = Arc::clone(&soak.network);
        match kind {
            Kind::Kill => soak.cluster.kill(slot),
            Kind::Terminate => {
                soak.cluster.signal(slot, "TERM");
                let (code, log) = soak.cluster.wait_exit(slot);
                assert_eq!(code, Some(0), "{log}");
            }
            Kind::Suspend => soak.cluster.signal(slot, "STOP"),
            Kind::HungDisk => faulty_disk::set_disk(server, DiskFault::Hung),
            Kind::SlowDisk => faulty_disk::set_disk(server, DiskFault::Slow),
            Kind::FailingDisk => faulty_disk::set_disk(server, DiskFault::Failing),
            Kind::FullDisk => faulty_disk::set_disk(server, DiskFault::Full),
            Kind::LostDisk => {
                soak.cluster.kill(slot);
                soak.clear(slot);
                soak.restart(slot);
            }
            Kind::Isolate => network.isolate(slot),
            Kind::OneWay => others.iter().for_each(|other| network.block(slot, *other)),
            Kind::LossyLink => {
                fault.task = Some(tokio::spawn(lose_packets(network, slot, others)));
            }
            Kind::ClockJump => faulty_disk::set_clock(server, [3600, -3600][slot % 2]),
            Kind::Transfer => fault.task = Some(tokio::spawn(transfer(soak.clients()))),
            Kind::LargeReads => fault.task = Some(heavy::start_reads(soak.clients())),
            Kind::LargeWrites => fault.task = Some(heavy::start_writes(soak.clients())),
            Kind::Replace | Kind::AddRemove => fault.joining = declare(soak, kind, slot).await,
        }
        fault
    }

    /// The member that a change adds joins while other faults last. Other faults are not affected.
    /// With two changes, both members join before one leaves: a removal waits for the members that
    /// another operator has declared.
    pub(crate) async fn finish_joining(&mut self, soak: &mut SoakCluster) {
        if !self.kind.is_change() {
            return;
        }
        while self.joining.is_none() {
            // It was refused because of another change. That one has finished by now.
            self.joining = declare(soak, self.kind, self.slot).await;
        }
        soak.join(self.joining.unwrap()).await;
    }

    /// The member that a change removes leaves, while other faults last.
    pub(crate) async fn finish_leaving(&mut self, soak: &mut SoakCluster) {
        let Some(joining) = self.joining else { return };
        let leaving = if self.kind == Kind::Replace { self.slot } else { joining };
        if self.kind == Kind::AddRemove {
            soak.remove(leaving).await;
        }
        let (code, log) = soak.cluster.wait_exit(leaving);
        assert_eq!(code, Some(3), "{log}");
        soak.members.remove(&leaving);
        soak.check_log(leaving);
        soak.clear(leaving);
    }

    pub(crate) async fn heal(self, soak: &mut SoakCluster) {
        let slot = self.slot;
        if let Some(task) = self.task {
            task.abort();
            let _ = task.await;
        }
        let others = self.others;
        match self.kind {
            Kind::Kill | Kind::Terminate => soak.restart(slot),
            Kind::Suspend => soak.cluster.signal(slot, "CONT"),
            Kind::HungDisk | Kind::SlowDisk => {
                faulty_disk::clear_disk(&soak.cluster.servers[slot]);
            }
            Kind::FailingDisk => restart_after_error(soak, slot, "os error 5"),
            Kind::FullDisk => restart_after_error(soak, slot, "os error 28"),
            Kind::LostDisk => {
                // It runs without a vote, or has exited because it was rejected.
                soak.cluster.kill(slot);
                soak.check_log(slot);
                soak.remove(slot).await;
                soak.clear(slot);
                soak.add(slot).await;
            }
            Kind::Isolate => soak.network.reconnect(slot),
            Kind::OneWay => others.iter().for_each(|other| soak.network.unblock(slot, *other)),
            Kind::LossyLink => {
                others.iter().for_each(|other| soak.network.try_unblock(slot, *other));
            }
            Kind::ClockJump => faulty_disk::set_clock(&soak.cluster.servers[slot], 0),
            Kind::Transfer | Kind::LargeReads | Kind::LargeWrites => {}
            Kind::Replace | Kind::AddRemove => {}
        }
    }
}

/// Asks for a change. None if it was refused because another one is in progress.
async fn declare(soak: &mut SoakCluster, kind: Kind, slot: usize) -> Option<usize> {
    let joining = soak.spare();
    soak.clear(joining);
    let pair = soak.cluster.servers[joining].pair();
    let old = soak.cluster.servers[slot].name.clone();
    let arguments = match kind {
        Kind::Replace => vec!["member", "replace", &old, &pair, "--no-wait"],
        _ => vec!["member", "add", &pair],
    };
    let mut result = Err(String::new());
    for _ in 0..ATTEMPTS {
        result = soak.command(&arguments).await;
        match &result {
            Ok(()) => {
                soak.joining.insert(joining);
                return Some(joining);
            }
            Err(text) if text.contains("in progress") => return None,
            // The request may have been executed although its reply was lost.
            Err(_) => {
                let ask: Vec<usize> = soak.members.iter().copied().collect();
                if soak.list(&ask).await.is_some_and(|list| list.contains_key(&joining)) {
                    soak.joining.insert(joining);
                    return Some(joining);
                }
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    panic!("{arguments:?}: {result:?}");
}

/// The member exits with the error of its disk, and works again afterwards.
fn restart_after_error(soak: &mut SoakCluster, slot: usize, error: &str) {
    let (code, log) = soak.cluster.wait_exit(slot);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains(error), "no '{error}' in\n{log}");
    faulty_disk::clear_disk(&soak.cluster.servers[slot]);
    soak.restart(slot);
}

/// Loses about half of the packets from a member to the others, in bursts.
async fn lose_packets(network: Arc<TestNetwork>, slot: usize, others: Vec<usize>) {
    loop {
        others.iter().for_each(|other| network.block(slot, *other));
        tokio::time::sleep(Duration::from_millis(150)).await;
        others.iter().for_each(|other| network.unblock(slot, *other));
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

/// Moves the leadership again and again.
async fn transfer(clients: Vec<FaultClient>) {
    for turn in 0.. {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let target = &clients[turn % clients.len()];
        let Ok(status) = target.status().await else { continue };
        let target_id = status.header.unwrap_or_default().member_id;
        for client in &clients {
            let mut maintenance = MaintenanceClient::new(client.channel.clone());
            // Only the leader accepts it.
            let request = MoveLeaderRequest { target_id };
            let _ = within(heavy::TIMEOUT, maintenance.move_leader(request)).await;
        }
    }
}

const ATTEMPTS: usize = 100;
