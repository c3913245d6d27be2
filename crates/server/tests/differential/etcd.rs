//! A single-member etcd as a process.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
        let mut command = Command::new("etcd");
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
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().ok()?;
        Some(Self { process, client, _directory: directory })
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
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}
