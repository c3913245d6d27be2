//! The member processes of the demo: start, wait until they serve, stop.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use super::certificates::DemoCertificates;
use crate::client::{self, Connection};
use crate::client_tls::ClientTls;
use crate::error::CliError;

/// Three initial members and the one that joins later.
const MEMBERS: usize = 4;
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Lines of a member's log that are shown when it fails to start.
const LOG_LINES: usize = 12;
/// Another program is killed by the process that watches it, which takes a moment.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct DemoCluster {
    directory: PathBuf,
    /// Another etcd-compatible server to run instead of this program.
    program: Option<PathBuf>,
    /// None without TLS.
    certificates: Option<DemoCertificates>,
    ports: Vec<MemberPorts>,
    children: Vec<Option<Child>>,
}

#[derive(Clone, Copy)]
struct MemberPorts {
    peer: u16,
    client: u16,
}

impl DemoCluster {
    /// Creates the directory if it does not exist.
    pub(super) fn new(
        directory: PathBuf,
        program: Option<PathBuf>,
        tls: bool,
    ) -> Result<Self, CliError> {
        let created = fs::create_dir_all(&directory);
        created.map_err(|error| CliError::with_cause("cannot create a directory", &error))?;
        let certificates = match tls {
            true => Some(DemoCertificates::create(&directory, MEMBERS)?),
            false => None,
        };
        let children = (0..MEMBERS).map(|_| None).collect();
        Ok(Self { directory, program, certificates, ports: free_ports()?, children })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Starts one of the three initial members.
    pub(super) fn start_initial(&mut self, number: usize) -> Result<(), CliError> {
        let cluster = (1..=3).map(|member| format!("m{member}={}", self.peer_url(member)));
        let cluster = cluster.collect::<Vec<_>>().join(",");
        self.start(number, &cluster, "new")
    }

    /// Starts a member that joins the existing cluster.
    pub(super) fn start_joining(&mut self, number: usize, cluster: &str) -> Result<(), CliError> {
        self.start(number, cluster, "existing")
    }

    pub(super) fn peer_url(&self, number: usize) -> String {
        format!("{}://127.0.0.1:{}", self.scheme(), self.ports[number - 1].peer)
    }

    fn client_url(&self, number: usize) -> String {
        format!("{}://127.0.0.1:{}", self.scheme(), self.ports[number - 1].client)
    }

    fn scheme(&self) -> &'static str {
        if self.certificates.is_some() { "https" } else { "http" }
    }

    /// How clients connect.
    pub(super) fn client_tls(&self) -> ClientTls {
        self.certificates.as_ref().map(DemoCertificates::client_tls).unwrap_or_default()
    }

    /// The files that clients need: the authority, a certificate and its key.
    pub(super) fn client_files(&self) -> Option<[PathBuf; 3]> {
        self.certificates.as_ref().map(DemoCertificates::client_files)
    }

    pub(super) fn endpoints(&self, numbers: &[usize]) -> Vec<String> {
        numbers.iter().map(|number| self.client_url(*number)).collect()
    }

    /// Names and client URLs.
    pub(super) fn addresses(&self, numbers: &[usize]) -> Vec<(String, String)> {
        numbers.iter().map(|number| (format!("m{number}"), self.client_url(*number))).collect()
    }

    pub(super) async fn connect(&self, number: usize) -> Result<Connection, CliError> {
        let (url, tls) = (self.client_url(number), self.client_tls());
        client::open(&url, &tls, DIAL_TIMEOUT, REQUEST_TIMEOUT).await
    }

    fn start(&mut self, number: usize, cluster: &str, state: &str) -> Result<(), CliError> {
        let log = File::create(self.log(number));
        let log = log.map_err(|error| CliError::with_cause("cannot create a log file", &error))?;
        let errors = log.try_clone();
        let errors =
            errors.map_err(|error| CliError::with_cause("cannot share a log file", &error))?;
        let mut command = own_program()?;
        match &self.program {
            Some(program) => command.arg("demo-program").arg(program),
            None => command.arg("demo-member"),
        };
        command
            .args(self.arguments(number, cluster, state))
            // The member exits when this pipe is closed, even if the demo is killed.
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(errors)
            // Ctrl-C reaches only the demo, which then stops the members.
            .process_group(0)
            // Another program is killed by the process that watches it, when the pipe is closed.
            .kill_on_drop(self.program.is_none());
        let child = command.spawn();
        let child = child
            .map_err(|error| CliError::with_cause(&format!("cannot start m{number}"), &error))?;
        self.children[number - 1] = Some(child);
        Ok(())
    }

    fn arguments(&self, number: usize, cluster: &str, state: &str) -> Vec<OsString> {
        let (peer, client) = (self.peer_url(number), self.client_url(number));
        let data = self.directory.join(format!("m{number}"));
        let token = format!("quorate-demo-{}", std::process::id());
        let pairs: [(&str, OsString); 9] = [
            ("--name", format!("m{number}").into()),
            ("--data-dir", data.into_os_string()),
            ("--listen-peer-urls", peer.clone().into()),
            ("--initial-advertise-peer-urls", peer.into()),
            ("--listen-client-urls", client.clone().into()),
            ("--advertise-client-urls", client.into()),
            ("--initial-cluster", cluster.into()),
            ("--initial-cluster-state", state.into()),
            ("--initial-cluster-token", token.into()),
        ];
        let pairs = pairs.into_iter().flat_map(|(flag, value)| [OsString::from(flag), value]);
        let tls = self.certificates.iter().flat_map(|certificates| certificates.flags(number));
        pairs.chain(tls).collect()
    }

    /// Waits until each of these members answers and knows the leader.
    pub(super) async fn wait_ready(&mut self, numbers: &[usize]) -> Result<(), CliError> {
        let started = Instant::now();
        for number in numbers {
            while !self.serves(*number).await {
                self.check_running(*number)?;
                if started.elapsed() > READY_TIMEOUT {
                    return Err(self.log_error(*number, "does not serve requests"));
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        Ok(())
    }

    async fn serves(&self, number: usize) -> bool {
        let Ok(connection) = self.connect(number).await else { return false };
        connection.status().await.is_ok_and(|status| status.leader != 0)
    }

    /// Fails if the process has exited.
    pub(super) fn check_running(&mut self, number: usize) -> Result<(), CliError> {
        let child = self.children[number - 1].as_mut();
        match child.and_then(|child| child.try_wait().ok().flatten()) {
            Some(status) => Err(self.log_error(number, &format!("exited: {status}"))),
            None => Ok(()),
        }
    }

    /// An error with the end of the member's log.
    fn log_error(&self, number: usize, problem: &str) -> CliError {
        let log = fs::read_to_string(self.log(number)).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        CliError::failed(format!(
            "m{number} {problem}; the end of its log:\n  {}",
            last.join("\n  ")
        ))
    }

    fn log(&self, number: usize) -> PathBuf {
        self.directory.join(format!("m{number}.log"))
    }

    /// Stops a member and waits for its exit. False if that failed.
    pub(super) async fn stop(&mut self, number: usize) -> bool {
        let Some(mut child) = self.children[number - 1].take() else { return true };
        if self.program.is_some() {
            drop(child.stdin.take());
            return tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_ok();
        }
        child.kill().await.is_ok()
    }

    /// Stops all members. Returns how many could not be stopped.
    pub(super) async fn stop_all(&mut self) -> u64 {
        let mut failures = 0;
        for number in 1..=MEMBERS {
            failures += u64::from(!self.stop(number).await);
        }
        failures
    }
}

fn own_program() -> Result<Command, CliError> {
    let program = std::env::current_exe();
    let program =
        program.map_err(|error| CliError::with_cause("cannot find this program", &error))?;
    Ok(Command::new(program))
}

fn free_ports() -> Result<Vec<MemberPorts>, CliError> {
    let ports = quorate_server::free_ports(MEMBERS * 2);
    let ports = ports.ok_or_else(|| CliError::failed("no free ports on 127.0.0.1"))?;
    Ok(ports.chunks(2).map(|pair| MemberPorts { peer: pair[0], client: pair[1] }).collect())
}
