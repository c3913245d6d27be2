//! Members that are killed, stopped and started again.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use crate::client::{Client, surely, wait_for};
use crate::common::cluster::Cluster;
use crate::common::{Place, Running};

pub(crate) struct Members<'a> {
    pub(crate) cluster: Cluster<'a>,
    /// Those that it began with.
    first: Vec<usize>,
    running: BTreeMap<usize, Running>,
    clients: Vec<Client>,
}

/// A place of that name, there and empty.
pub(crate) fn place(name: &str) -> Place {
    let place = Place::new(&format!("faults-{name}"));
    fs::create_dir_all(&place.path).unwrap();
    place
}

impl<'a> Members<'a> {
    /// A cluster of the first `count`, once each of them serves; the other places stay empty.
    pub(crate) async fn start(cluster: Cluster<'a>, places: usize, count: usize) -> Self {
        let clients = (0..places).map(|number| Client::at(&cluster.client(number))).collect();
        let first = (0..count).collect();
        let mut members = Self { cluster, first, running: BTreeMap::new(), clients };
        (0..count).for_each(|number| members.start_again(number));
        for number in 0..count {
            members.serves(number).await;
        }
        members
    }

    pub(crate) async fn three(place: &'a Place) -> Self {
        Self::start(Cluster::new(place, "m", 3), 3, 3).await
    }

    pub(crate) fn client(&self, number: usize) -> &Client {
        &self.clients[number]
    }

    /// Of all that run.
    pub(crate) fn clients(&self) -> Vec<Client> {
        self.numbers().into_iter().map(|number| self.clients[number].clone()).collect()
    }

    fn numbers(&self) -> Vec<usize> {
        self.running.keys().copied().collect()
    }

    pub(crate) fn others(&self, number: usize) -> Vec<usize> {
        self.numbers().into_iter().filter(|other| *other != number).collect()
    }

    /// With the flags of the first start.
    pub(crate) fn start_again(&mut self, number: usize) {
        let running = self.cluster.spawn_among(number, &self.first, "new");
        self.running.insert(number, running);
    }

    /// As a new one among these.
    pub(crate) fn start_joining(&mut self, number: usize, members: &[usize]) {
        let running = self.cluster.spawn_among(number, members, "existing");
        self.running.insert(number, running);
    }

    /// Until it serves. Where nobody tells it in time that it was added, it is started again.
    pub(crate) async fn join(&mut self, number: usize, members: &[usize]) {
        self.start_joining(number, members);
        let client = self.clients[number].clone();
        let serves = async || {
            if !self.is_running(number) {
                println!("joins again: {}", self.said(number));
                self.start_joining(number, members);
            }
            client.revision().await
        };
        surely(&format!("member {number} serves"), serves).await;
    }

    /// Waits until it answers, which it does not before it has everything.
    pub(crate) async fn serves(&mut self, number: usize) {
        let client = self.clients[number].clone();
        let answers = async || {
            if !self.is_running(number) {
                let said = self.said(number);
                assert!(said.contains("cannot listen on"), "member {number} ended: {said}");
                // Somebody had taken its port meanwhile, to talk to somebody else.
                self.start_again(number);
            }
            client.revision().await
        };
        surely(&format!("member {number} serves"), answers).await;
    }

    /// As `kill -9` does it.
    pub(crate) fn kill(&mut self, number: usize) {
        drop(self.running.remove(&number).unwrap());
    }

    pub(crate) fn signal(&self, number: usize, signal: &str) {
        let id = self.running[&number].0.id().to_string();
        let sent = Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap();
        assert!(sent.success(), "kill -{signal} {id}");
    }

    pub(crate) fn is_running(&mut self, number: usize) -> bool {
        self.running.get_mut(&number).unwrap().0.try_wait().unwrap().is_none()
    }

    /// Waits until the process ends by itself: its exit code, and what it said.
    pub(crate) fn ended(&mut self, number: usize) -> (Option<i32>, String) {
        let mut running = self.running.remove(&number).unwrap();
        assert!(running.ended(), "member {number} goes on: {}", self.said(number));
        (running.0.wait().unwrap().code(), self.said(number))
    }

    pub(crate) fn said(&self, number: usize) -> String {
        fs::read_to_string(self.cluster.log(number)).unwrap()
    }

    pub(crate) async fn leader(&self) -> usize {
        self.leader_among(&self.numbers()).await
    }

    /// Who of these leads, by its own words and in the newest term that any of them knows.
    pub(crate) async fn leader_among(&self, numbers: &[usize]) -> usize {
        wait_for("somebody leads", async || {
            let mut newest = 0;
            let mut leader = None;
            for number in numbers {
                let Ok(status) = self.clients[*number].status().await else { continue };
                let own = status.header.unwrap_or_default().member_id;
                if status.raft_term > newest {
                    (newest, leader) = (status.raft_term, None);
                }
                if status.leader == own && status.raft_term == newest {
                    leader = Some(*number);
                }
            }
            leader
        })
        .await
    }

    /// Waits until all that run have everything, and demands that it is the same.
    pub(crate) async fn agree(&self) -> BTreeMap<String, String> {
        let any = &self.clients[self.numbers()[0]];
        let revision = surely("a revision", async || any.revision().await).await;
        let mut found: Vec<(u32, BTreeMap<String, String>)> = Vec::new();
        for number in self.numbers() {
            let client = &self.clients[number];
            let complete =
                async || client.everything().await.ok().filter(|(at, _)| *at >= revision);
            let (_, data) = wait_for(&format!("member {number} has everything"), complete).await;
            let hash = surely("a hash", async || client.hash(revision).await).await;
            found.push((hash, data));
        }
        let (hash, data) = found.swap_remove(0);
        for (other_hash, other_data) in found {
            assert_eq!(other_data, data);
            assert_eq!(other_hash, hash);
        }
        data
    }
}
