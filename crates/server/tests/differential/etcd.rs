//! A single-member etcd as a process.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb::StatusRequest;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::support::TEST_TIMEOUT;

pub(crate) struct Etcd {
    process: Child,
    client: String,
    _directory: TempDir,
}

impl Etcd {
    /// `None` if etcd is not installed.
    pub(crate) fn start() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let (client, peer) = (free_url(), free_url());
        let program = std::env::var_os("ETCD").unwrap_or_else(|| "etcd".into());
        let mut command = Command::new(program);
        command.arg("--data-dir").arg(directory.path());
        for (flag, url) in [
            ("--listen-client-urls", &client),
            ("--advertise-client-urls", &client),
            ("--listen-peer-urls", &peer),
            ("--initial-advertise-peer-urls", &peer),
        ] {
            command.args([flag, url]);
        }
        command.args(["--initial-cluster", &format!("default={peer}")]);
        // Cheap passwords, so that tests do not wait for them.
        command.args(["--bcrypt-cost", "4"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().ok()?;
        Some(Self { process, client, _directory: directory })
    }

    /// The address of its port for clients.
    pub(crate) fn address(&self) -> SocketAddr {
        self.client.trim_start_matches("http://").parse().unwrap()
    }

    /// The two numbers of its version, such as 3 and 4.
    pub(crate) async fn version(&self) -> (u32, u32) {
        let mut client = MaintenanceClient::new(self.channel().await);
        let status = client.status(StatusRequest {}).await.unwrap().into_inner();
        let mut numbers = status.version.split('.').map(|number| number.parse().unwrap());
        (numbers.next().unwrap(), numbers.next().unwrap())
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(self.client.clone()).unwrap();
        let began = Instant::now();
        loop {
            match endpoint.connect().await {
                Ok(channel) => return channel,
                Err(error) => assert!(began.elapsed() < TEST_TIMEOUT, "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn free_url() -> String {
    format!("http://127.0.0.1:{}", quorate::testkit::ports::free_ports(1).unwrap()[0])
}
