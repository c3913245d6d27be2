//! What the demo shows while it runs: on a terminal a block that is drawn again and again,
//! elsewhere a line each second.

use std::io::{IsTerminal, stdout};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb as etcd;
use tokio::task::{JoinHandle, JoinSet};

use super::load::Load;
use crate::bar::bar;
use crate::client;
use crate::command::bench::millis;
use crate::print;

const DRAW_EVERY: Duration = Duration::from_millis(250);
const LINE_EVERY: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_millis(200);

pub(super) struct View {
    screen: Arc<Screen>,
    drawing: JoinHandle<()>,
}

struct Screen {
    terminal: bool,
    /// Lines of the block that are on the screen.
    drawn: Mutex<usize>,
}

/// A member as it answered, if it did.
struct Seen {
    name: String,
    status: Option<etcd::StatusResponse>,
}

impl View {
    pub(super) fn start(load: Arc<Load>, addresses: Vec<(String, String)>) -> Self {
        let screen = Arc::new(Screen { terminal: stdout().is_terminal(), drawn: Mutex::new(0) });
        let drawing = tokio::spawn(draw(screen.clone(), load, addresses));
        Self { screen, drawing }
    }

    /// A line that stays, above the block.
    pub(super) fn say(&self, text: &str) {
        self.screen.show(&[text.to_string()], 0);
    }

    pub(super) fn stop(&self) {
        self.drawing.abort();
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.drawing.abort();
    }
}

impl Screen {
    /// Takes the block away and writes; the last `block` lines are the new block.
    fn show(&self, lines: &[String], block: usize) {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let up = if *drawn > 0 { format!("\x1b[{}A\x1b[J", *drawn) } else { String::new() };
        print::out(&format!("{up}{}\n", lines.join("\n")));
        *drawn = block;
    }
}

async fn draw(screen: Arc<Screen>, load: Arc<Load>, addresses: Vec<(String, String)>) {
    let every = if screen.terminal { DRAW_EVERY } else { LINE_EVERY };
    let mut looked = Instant::now();
    loop {
        tokio::time::sleep(every).await;
        let seen = ask_all(&addresses).await;
        let (recent, failed) = load.look();
        // Asking takes its time as well.
        let since = std::mem::replace(&mut looked, Instant::now()).elapsed();
        let rate = recent.total() as f64 / since.as_secs_f64();
        let p99 = millis(recent.per_mille(990));
        let writes = format!("{rate:.0} writes a second, p99 {p99}, {failed} failed");
        if screen.terminal {
            let mut lines = block(&seen);
            lines.push(writes);
            screen.show(&lines, lines.len());
        } else {
            screen.show(&[format!("{} | {writes}", one_line(&seen))], 0);
        }
    }
}

/// All at the same time: asked one after the other, the last would look furthest.
async fn ask_all(addresses: &[(String, String)]) -> Vec<Seen> {
    let mut asking = JoinSet::new();
    for (name, address) in addresses.iter().cloned() {
        asking.spawn(async move { Seen { name, status: ask(&address).await } });
    }
    let mut seen = asking.join_all().await;
    seen.sort_by(|one, other| one.name.cmp(&other.name));
    seen
}

async fn ask(address: &str) -> Option<etcd::StatusResponse> {
    let connection = client::open(address, TIMEOUT, TIMEOUT).await.ok()?;
    connection.status().await.ok()
}

fn role(seen: &Seen) -> &'static str {
    match &seen.status {
        None => "-",
        Some(status) if status.is_learner => "learner",
        Some(status) if status.leader == 0 => "no leader",
        Some(status) if status.header.as_ref().is_some_and(|it| it.member_id == status.leader) => {
            "leader"
        }
        Some(_) => "follower",
    }
}

fn furthest(seen: &[Seen]) -> u64 {
    let indexes = seen.iter().filter_map(|one| one.status.as_ref());
    indexes.map(|status| status.raft_index).max().unwrap_or(0)
}

fn block(seen: &[Seen]) -> Vec<String> {
    let furthest = furthest(seen);
    let row = |one: &Seen| match &one.status {
        None => format!("{:4} {:9}", one.name, role(one)),
        Some(status) => {
            let behind = furthest.saturating_sub(status.raft_applied_index);
            let bar = bar(furthest - behind, furthest);
            format!("{:4} {:9} {bar} {behind} behind", one.name, role(one))
        }
    };
    seen.iter().map(row).collect()
}

fn one_line(seen: &[Seen]) -> String {
    let furthest = furthest(seen);
    let part = |one: &Seen| {
        let status = one.status.as_ref()?;
        let behind = furthest.saturating_sub(status.raft_applied_index);
        Some(format!("{} {} {behind} behind", one.name, role(one)))
    };
    seen.iter().filter_map(part).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_in_a_line() {
        let status = |id, index| etcd::StatusResponse {
            header: Some(etcd::ResponseHeader { member_id: id, ..Default::default() }),
            leader: 1,
            raft_index: index,
            raft_applied_index: index,
            ..Default::default()
        };
        let seen = [
            Seen { name: "m1".to_string(), status: Some(status(1, 50)) },
            Seen { name: "m2".to_string(), status: Some(status(2, 47)) },
            Seen { name: "m3".to_string(), status: None },
        ];
        assert_eq!(one_line(&seen), "m1 leader 0 behind, m2 follower 3 behind");
        assert!(block(&seen)[1].ends_with("[##################--] 3 behind"), "{:?}", block(&seen));
    }
}
