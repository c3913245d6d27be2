//! The processes of the demo: starting, waiting until they serve, stopping.

use std::ffi::OsString;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::process::{Child, Command};

use super::directory::Directory;
use crate::client::{self, Connection};
use crate::failure::Failure;

/// Three, and the one that comes later.
const MEMBERS: usize = 4;
const READY_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(50);
const DIAL_TIMEOUT: Duration = Duration::from_millis(500);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Lines of a member's log that are shown when it does not start.
const LOG_LINES: usize = 12;

pub(super) struct Members {
    directory: PathBuf,
    /// Another server to show the same with, instead of this program's own.
    program: Option<PathBuf>,
    ports: Vec<Ports>,
    children: Vec<Option<Child>>,
}

#[derive(Clone, Copy)]
struct Ports {
    peer: u16,
    client: u16,
}

impl Members {
    pub(super) fn new(directory: &Directory, program: Option<PathBuf>) -> Result<Self, Failure> {
        Ok(Self {
            directory: directory.path().to_path_buf(),
            program,
            ports: free_ports()?,
            children: (0..MEMBERS).map(|_| None).collect(),
        })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// One of the first three, which know each other from the start.
    pub(super) fn start_first(&mut self, number: usize) -> Result<(), Failure> {
        let cluster = (1..=3).map(|one| format!("m{one}={}", self.peer_url(one)));
        let cluster = cluster.collect::<Vec<_>>().join(",");
        self.start(number, &cluster, "new")
    }

    /// One that joins those who are members by now.
    pub(super) fn start_joining(&mut self, number: usize, cluster: &str) -> Result<(), Failure> {
        self.start(number, cluster, "existing")
    }

    pub(super) fn peer_url(&self, number: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[number - 1].peer)
    }

    fn client_url(&self, number: usize) -> String {
        format!("http://127.0.0.1:{}", self.ports[number - 1].client)
    }

    pub(super) fn endpoints(&self, numbers: &[usize]) -> Vec<String> {
        numbers.iter().map(|number| self.client_url(*number)).collect()
    }

    /// Names and where clients find them.
    pub(super) fn addresses(&self, numbers: &[usize]) -> Vec<(String, String)> {
        numbers.iter().map(|number| (format!("m{number}"), self.client_url(*number))).collect()
    }

    pub(super) async fn connect(&self, number: usize) -> Result<Connection, Failure> {
        client::open(&self.client_url(number), DIAL_TIMEOUT, REQUEST_TIMEOUT).await
    }

    fn start(&mut self, number: usize, cluster: &str, state: &str) -> Result<(), Failure> {
        let log = File::create(self.log(number));
        let log = log.map_err(|why| Failure::because("cannot make a log file", &why))?;
        let errors =
            log.try_clone().map_err(|why| Failure::because("cannot share a log file", &why))?;
        let mut command = match &self.program {
            Some(program) => Command::new(program),
            None => own_program()?,
        };
        command
            .args(self.arguments(number, cluster, state))
            // Its end is the sign to go, also when we are killed.
            .stdin(Stdio::piped())
            .stdout(log)
            .stderr(errors)
            // Ctrl-C is for us: we stop them in order.
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn();
        let child =
            child.map_err(|why| Failure::because(&format!("cannot start m{number}"), &why))?;
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
        pairs.into_iter().flat_map(|(flag, value)| [OsString::from(flag), value]).collect()
    }

    /// Until each of these answers and knows who leads.
    pub(super) async fn wait_ready(&mut self, numbers: &[usize]) -> Result<(), Failure> {
        let began = Instant::now();
        for number in numbers {
            while !self.serves(*number).await {
                self.check_runs(*number)?;
                if began.elapsed() > READY_MAX {
                    return Err(self.not_started(*number, "does not serve"));
                }
                tokio::time::sleep(LOOK_EVERY).await;
            }
        }
        Ok(())
    }

    async fn serves(&self, number: usize) -> bool {
        let Ok(connection) = self.connect(number).await else { return false };
        connection.status().await.is_ok_and(|status| status.leader != 0)
    }

    /// Fails when it ended by itself.
    pub(super) fn check_runs(&mut self, number: usize) -> Result<(), Failure> {
        let child = self.children[number - 1].as_mut();
        match child.and_then(|child| child.try_wait().ok().flatten()) {
            Some(status) => Err(self.not_started(number, &format!("ended with {status}"))),
            None => Ok(()),
        }
    }

    fn not_started(&self, number: usize, what: &str) -> Failure {
        let log = fs::read_to_string(self.log(number)).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let last = &lines[lines.len().saturating_sub(LOG_LINES)..];
        Failure::failed(format!("m{number} {what}; the end of its log:\n  {}", last.join("\n  ")))
    }

    fn log(&self, number: usize) -> PathBuf {
        self.directory.join(format!("m{number}.log"))
    }

    /// Ends one and waits for its end.
    pub(super) async fn stop(&mut self, number: usize) -> bool {
        let Some(mut child) = self.children[number - 1].take() else { return true };
        child.kill().await.is_ok()
    }

    /// How many could not be ended.
    pub(super) async fn stop_all(&mut self) -> u64 {
        let mut trouble = 0;
        for number in 1..=MEMBERS {
            trouble += u64::from(!self.stop(number).await);
        }
        trouble
    }
}

fn own_program() -> Result<Command, Failure> {
    let program = std::env::current_exe();
    let program = program.map_err(|why| Failure::because("cannot find this program", &why))?;
    let mut command = Command::new(program);
    command.arg("demo-member");
    Ok(command)
}

/// All are held until all are found, so that none is found twice.
fn free_ports() -> Result<Vec<Ports>, Failure> {
    let held: Result<Vec<TcpListener>, _> =
        (0..MEMBERS * 2).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    let held = held.map_err(|why| Failure::because("cannot listen on 127.0.0.1", &why))?;
    let ports: Result<Vec<u16>, _> =
        held.iter().map(|one| one.local_addr().map(|address| address.port())).collect();
    let ports = ports.map_err(|why| Failure::because("cannot listen on 127.0.0.1", &why))?;
    Ok(ports.chunks(2).map(|pair| Ports { peer: pair[0], client: pair[1] }).collect())
}
