//! Numbered servers of one cluster.

use std::ops::{Deref, DerefMut};

use super::server::{TestServer, start_all};
use super::{TestDirectory, TestProcess};

/// Servers `NAME0`, `NAME1` and so on.
pub(crate) struct TestCluster {
    servers: Vec<TestServer>,
}

impl Deref for TestCluster {
    type Target = [TestServer];

    fn deref(&self) -> &[TestServer] {
        &self.servers
    }
}

impl DerefMut for TestCluster {
    fn deref_mut(&mut self) -> &mut [TestServer] {
        &mut self.servers
    }
}

impl TestCluster {
    /// On free ports of this machine.
    pub(crate) fn new<const N: usize>(directory: &TestDirectory, name: &str) -> Self {
        let names: [String; N] = std::array::from_fn(|number| format!("{name}{number}"));
        let mut servers = TestServer::all(directory, names.each_ref().map(String::as_str));
        servers.iter_mut().for_each(|server| server.token = name.to_string());
        Self::of(servers.into())
    }

    pub(crate) fn of(servers: Vec<TestServer>) -> Self {
        Self { servers }
    }

    /// These servers.
    pub(crate) fn select(&self, numbers: &[usize]) -> Vec<&TestServer> {
        numbers.iter().map(|number| &self.servers[*number]).collect()
    }

    pub(crate) fn all(&self) -> Vec<&TestServer> {
        self.servers.iter().collect()
    }

    /// Starts all servers. Returns when each of them serves requests.
    pub(crate) fn start(&self) -> Vec<TestProcess> {
        start_all(&self.all())
    }

    /// Starts one server of the new cluster without waiting.
    pub(crate) fn spawn(&self, number: usize) -> TestProcess {
        self.servers[number].start_new(&self.all())
    }

    pub(crate) fn client_urls(&self) -> Vec<String> {
        self.servers.iter().map(|server| server.client_url.clone()).collect()
    }

    /// For etcdctl.
    pub(crate) fn client_addresses(&self) -> Vec<String> {
        self.servers.iter().map(TestServer::client_address).collect()
    }
}
