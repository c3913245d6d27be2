//! A cluster of server processes on this machine.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use quorate::testkit::ports::free_ports;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{InstrumentError, System, http};

/// One process. It is killed when this is dropped.
pub(super) struct ServerProcess {
    pub(super) name: String,
    pub(super) client_port: u16,
    peer_port: u16,
    folder: PathBuf,
    child: Option<Child>,
}

/// Members of one system.
pub(super) struct ServerCluster {
    system: System,
    folder: PathBuf,
    pub(super) members: Vec<ServerProcess>,
}

impl ServerProcess {
    fn peer_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.peer_port)
    }

    pub(super) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Kills the process, as `kill -9` does, and waits for its end.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // An error means that it has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Asks the process to stop, without waiting.
    pub(super) fn terminate(&mut self) {
        if let Some(pid) = self.pid().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Waits until it has stopped by itself.
    pub(super) fn wait(&mut self) -> Result<(), InstrumentError> {
        let child = &mut self.child;
        until("a member to stop", || {
            let ended = child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
            ended.then_some(())
        })?;
        self.child = None;
        Ok(())
    }

    pub(super) fn wait_until_healthy(&self) -> Result<(), InstrumentError> {
        let what = format!("{} to serve requests; its log is {}", self.name, self.log().display());
        until(&what, || http::is_healthy(self.client_port).then_some(()))
    }

    fn log(&self) -> PathBuf {
        self.folder.with_extension("log")
    }

    /// The bytes of all files.
    pub(super) fn disk_bytes(&self) -> u64 {
        bytes_below(&self.folder)
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

impl ServerCluster {
    /// Starts this many members, and waits until they serve requests.
    pub(super) fn start(
        system: &System,
        parent: &Path,
        count: usize,
    ) -> Result<Self, InstrumentError> {
        let folder = parent.join(&system.name);
        let _ = std::fs::remove_dir_all(&folder);
        let doing = format!("cannot create {}", folder.display());
        std::fs::create_dir_all(&folder).map_err(InstrumentError::when(doing))?;
        let mut cluster = Self { system: system.clone(), folder, members: Vec::new() };
        for number in 1..=count {
            cluster.add_process(number)?;
        }
        let urls = cluster.initial_cluster();
        for at in 0..count {
            cluster.launch(at, &urls, "new")?;
        }
        cluster.members.iter().try_for_each(ServerProcess::wait_until_healthy)?;
        Ok(cluster)
    }

    fn add_process(&mut self, number: usize) -> Result<(), InstrumentError> {
        let ports = free_ports(2).ok_or_else(|| InstrumentError::new("no free ports"))?;
        let name = format!("m{number}");
        self.members.push(ServerProcess {
            folder: self.folder.join(&name),
            name,
            client_port: ports[0],
            peer_port: ports[1],
            child: None,
        });
        Ok(())
    }

    fn initial_cluster(&self) -> String {
        let urls =
            self.members.iter().map(|member| format!("{}={}", member.name, member.peer_url()));
        urls.collect::<Vec<_>>().join(",")
    }

    fn launch(&mut self, at: usize, urls: &str, state: &str) -> Result<(), InstrumentError> {
        let member = &mut self.members[at];
        let client_url = format!("http://127.0.0.1:{}", member.client_port);
        let peer_url = member.peer_url();
        let program = self.system.program.display();
        let failed = || InstrumentError::when(format!("cannot start {program}"));
        let log = File::options().create(true).append(true).open(member.log()).map_err(failed())?;
        let mut command = Command::new(&self.system.program);
        if !self.system.is_etcd() {
            command.arg("server");
        }
        command
            .args(["--name", &member.name, "--data-dir"])
            .arg(&member.folder)
            .args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url])
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", urls, "--initial-cluster-state", state])
            .args(["--quota-backend-bytes", "8589934592"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().map_err(failed())?)
            .stderr(log);
        member.child = Some(command.spawn().map_err(failed())?);
        Ok(())
    }

    /// Starts a member again that has stopped, and waits until it serves requests.
    pub(super) fn restart(&mut self, at: usize) -> Result<(), InstrumentError> {
        let urls = self.initial_cluster();
        self.launch(at, &urls, "existing")?;
        self.members[at].wait_until_healthy()
    }

    /// Adds a learner to the membership and starts it. Returns its id.
    pub(super) fn add_learner(&mut self) -> Result<String, InstrumentError> {
        self.add_process(self.members.len() + 1)?;
        let at = self.members.len() - 1;
        let body = json!({"peerURLs": [self.members[at].peer_url()], "isLearner": true});
        let added = self.change(0, "/v3/cluster/member/add", &body)?;
        let urls = self.initial_cluster();
        self.launch(at, &urls, "existing")?;
        text(&added["member"]["ID"])
    }

    /// Promotes a learner as soon as it has caught up.
    pub(super) fn promote(&self, id: &str) -> Result<(), InstrumentError> {
        let port = self.members[0].client_port;
        let body = json!({"ID": id});
        let mut last = String::new();
        let promoted = until("a learner to catch up", || {
            match http::call(port, "/v3/cluster/member/promote", &body) {
                Ok(_) => Some(()),
                Err(why) => {
                    last = why.to_string();
                    None
                }
            }
        });
        promoted.map_err(|why| InstrumentError::new(format!("{why}: {last}")))
    }

    /// Removes a member by its id, by asking the member at `through`.
    pub(super) fn remove(&self, through: usize, id: &str) -> Result<(), InstrumentError> {
        self.change(through, "/v3/cluster/member/remove", &json!({"ID": id})).map(drop)
    }

    /// A change of members, repeated while the server refuses it because members are connected for
    /// too short a time: etcd asks for five seconds.
    fn change(&self, through: usize, path: &str, body: &Value) -> Result<Value, InstrumentError> {
        let port = self.members[through].client_port;
        until("a change of members", || match http::call(port, path, body) {
            Err(why) if why.to_string().contains("unhealthy cluster") => None,
            ended => Some(ended),
        })?
    }

    /// Moves the leadership, by asking the leader at `from`.
    pub(super) fn move_leader(&self, from: usize, to: usize) -> Result<(), InstrumentError> {
        let body = json!({"targetID": self.id(to)?});
        let port = self.members[from].client_port;
        http::call(port, "/v3/maintenance/transfer-leadership", &body).map(drop)
    }

    fn status(&self, at: usize) -> Result<Value, InstrumentError> {
        http::call(self.members[at].client_port, "/v3/maintenance/status", &json!({}))
    }

    pub(super) fn id(&self, at: usize) -> Result<String, InstrumentError> {
        text(&self.status(at)?["header"]["member_id"])
    }

    /// The position of the leader.
    pub(super) fn leader(&self) -> Result<usize, InstrumentError> {
        until("a leader", || {
            (0..self.members.len()).find(|at| {
                let Ok(status) = self.status(*at) else { return false };
                let leader = &status["leader"];
                !leader.is_null() && *leader == status["header"]["member_id"]
            })
        })
    }

    /// Where the members' files are.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.members.iter().filter_map(ServerProcess::pid).collect()
    }

    /// The addresses of all members but one.
    pub(super) fn endpoints_without(&self, left_out: Option<usize>) -> String {
        let members = self.members.iter().enumerate().filter(|(at, _)| Some(*at) != left_out);
        let addresses = members.map(|(_, member)| format!("127.0.0.1:{}", member.client_port));
        addresses.collect::<Vec<_>>().join(",")
    }
}

/// Repeats a check until it returns something, for at most a minute.
pub(super) fn until<T>(
    what: &str,
    mut check: impl FnMut() -> Option<T>,
) -> Result<T, InstrumentError> {
    let began = Instant::now();
    loop {
        if let Some(found) = check() {
            return Ok(found);
        }
        if began.elapsed() > WAIT_TIMEOUT {
            return Err(InstrumentError::new(format!("waited a minute for {what}")));
        }
        sleep(POLL_INTERVAL);
    }
}

/// Numbers of 64 bits are text in this JSON.
fn text(value: &Value) -> Result<String, InstrumentError> {
    let id = value.as_str().map(String::from);
    id.ok_or_else(|| InstrumentError::new(format!("no id of a member in the reply: {value}")))
}

fn bytes_below(folder: &Path) -> u64 {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let bytes = entries.map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    bytes.sum()
}

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
