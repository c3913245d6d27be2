//! A key-value store on disk, three processes that talk over TCP.
//!
//! Without arguments: starts three processes of this program, writes, kills the
//! leader with `kill -9`, continues with the other two, restarts it and checks the data.
//!
//! By hand, in three terminals, `N` being 1, 2 and 3:
//! `disk_kv member N DIRECTORY 127.0.0.1:7001 127.0.0.1:7002 127.0.0.1:7003`
//! then type `put a 1`, `get a`, `status`, `stop`.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use quorate::{
    DirectoryStorage, KvCommand, KvReply, MemoryKv, Node, NodeConfig, TcpConfig, TcpTransport,
};
use tokio::io::{AsyncBufReadExt, BufReader as AsyncReader};

type AnyError = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), AnyError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [] => show(),
        ["member", id, directory, addresses @ ..] if !addresses.is_empty() => {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
            runtime.block_on(run_member(id.parse()?, Path::new(directory), addresses))
        }
        _ => Err("usage: disk_kv [member N DIRECTORY ADDRESS...]".into()),
    }
}

/// One member: commands on standard input, replies on standard output.
async fn run_member(id: u64, directory: &Path, addresses: &[&str]) -> Result<(), AnyError> {
    let place = usize::try_from(id)?.checked_sub(1).ok_or("members are counted from 1")?;
    let own: SocketAddr = addresses.get(place).ok_or("no address for this member")?.parse()?;
    let transport = TcpTransport::bind(TcpConfig::new(own)).await?;
    let members = (1..).zip(addresses.iter().map(ToString::to_string));
    let config = NodeConfig::first(0xd15c, id, members);
    let storage = DirectoryStorage::new(directory)?;
    let node = Node::start(config, storage, MemoryKv::default(), transport).await?;

    let mut lines = AsyncReader::new(tokio::io::stdin()).lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line?,
            why = node.wait_stopped() => return Err(why.into()),
        };
        let Some(line) = line else { break };
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            ["put", key, value] => println!("{}", put(&node, key, value).await),
            ["get", key] => println!("{}", get(&node, key).await),
            ["status"] => println!("{}", node.status().await?.raft),
            ["stop"] => break,
            _ => println!("usage: put KEY VALUE, get KEY, status or stop"),
        }
    }
    node.stop().await;
    Ok(())
}

async fn put(node: &Node, key: &str, value: &str) -> String {
    let (key, value) = (key.to_owned().into(), value.to_owned().into());
    match node.propose(KvCommand::Put { key, value }.encode()).await {
        Ok(reply) => format!("done at {}", reply.index),
        Err(why) => why.to_string(),
    }
}

async fn get(node: &Node, key: &str) -> String {
    match node.read(key.to_owned()).await {
        Ok(bytes) => match KvReply::decode(&bytes).and_then(|reply| reply.value) {
            Some(value) => String::from_utf8_lossy(&value).into_owned(),
            None => "(none)".into(),
        },
        Err(why) => why.to_string(),
    }
}

/// A process that runs a member.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(id: u64, directory: &Path, addresses: &[String]) -> Result<Self, AnyError> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("member").arg(id.to_string()).arg(directory.join(id.to_string()));
        command.args(addresses).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take().ok_or("no standard input")?;
        let output = BufReader::new(child.stdout.take().ok_or("no standard output")?);
        Ok(Self { child, input, output })
    }

    fn ask(&mut self, line: &str) -> Result<String, AnyError> {
        writeln!(self.input, "{line}")?;
        let mut answer = String::new();
        self.output.read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn show() -> Result<(), AnyError> {
    let directory = tempfile::tempdir()?;
    let addresses = free_addresses()?;
    let start = |id| Process::start(id, directory.path(), &addresses);
    let mut members = vec![start(1)?, start(2)?, start(3)?];

    println!("put through member 1: {}", members[0].ask("put greeting hello")?);
    println!("get through member 3: {}", members[2].ask("get greeting")?);
    let status = members[0].ask("status")?;
    println!("status of member 1: {status}");

    let leads = |process: &mut Process| {
        process.ask("status").is_ok_and(|line| line.contains("leader term"))
    };
    let leader = members.iter_mut().position(leads).ok_or("no member leads")?;
    println!("kill -9 of member {}, which leads", leader + 1);
    members[leader].child.kill()?;
    members[leader].child.wait()?;
    let other = (leader + 1) % 3;
    println!("put through member {}: {}", other + 1, members[other].ask("put greeting again")?);

    println!("member {} starts again", leader + 1);
    members[leader] = start(leader as u64 + 1)?;
    let got = members[leader].ask("get greeting")?;
    println!("get through member {}: {got}", leader + 1);
    if got != "again" {
        return Err("an acknowledged write is lost".into());
    }
    for member in &mut members {
        writeln!(member.input, "stop")?;
        member.child.wait()?;
    }
    Ok(())
}

/// Ports that were free just now.
fn free_addresses() -> Result<Vec<String>, AnyError> {
    let listeners: Result<Vec<_>, _> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
    listeners?.iter().map(|one| Ok(one.local_addr()?.to_string())).collect()
}
