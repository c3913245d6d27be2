//! The live output of the demo: on a terminal a block that is redrawn, elsewhere one line per
//! second.

use std::io::{IsTerminal, stdout};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb as etcd;
use tokio::task::{JoinHandle, JoinSet};

use super::load::DemoLoad;
use crate::client;
use crate::client_tls::ClientTls;
use crate::command::bench::millis;
use crate::print;
use crate::progress_bar::progress_bar;

const REDRAW_INTERVAL: Duration = Duration::from_millis(250);
const LINE_INTERVAL: Duration = Duration::from_secs(1);
const REQUEST_TIMEOUT: Duration = Duration::from_millis(200);

pub(super) struct LiveView {
    screen: Arc<Screen>,
    drawing: JoinHandle<()>,
}

struct Screen {
    terminal: bool,
    /// Number of lines of the block on the screen.
    drawn: Mutex<usize>,
}

/// A member and its status, if it answered.
struct DisplayedMember {
    name: String,
    status: Option<etcd::StatusResponse>,
}

impl LiveView {
    pub(super) fn start(load: Arc<DemoLoad>, addresses: Vec<(String, String)>) -> Self {
        let screen = Arc::new(Screen { terminal: stdout().is_terminal(), drawn: Mutex::new(0) });
        let drawing = tokio::spawn(draw(screen.clone(), load, addresses));
        Self { screen, drawing }
    }

    /// Prints a line above the block.
    pub(super) fn print(&self, text: &str) {
        self.screen.show(&[text.to_string()], 0);
    }

    pub(super) fn stop(&self) {
        self.drawing.abort();
    }
}

impl Drop for LiveView {
    fn drop(&mut self) {
        self.drawing.abort();
    }
}

impl Screen {
    /// Erases the block and prints the lines; the last `block` of them are the new block.
    fn show(&self, lines: &[String], block: usize) {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        let up = if *drawn > 0 { format!("\x1b[{}A\x1b[J", *drawn) } else { String::new() };
        print::out(&format!("{up}{}\n", lines.join("\n")));
        *drawn = block;
    }
}

async fn draw(screen: Arc<Screen>, load: Arc<DemoLoad>, addresses: Vec<(String, String)>) {
    let interval = if screen.terminal { REDRAW_INTERVAL } else { LINE_INTERVAL };
    let mut previous = Instant::now();
    loop {
        tokio::time::sleep(interval).await;
        let members = query_all(&addresses, load.tls()).await;
        let (recent, failed) = load.take_recent();
        // The interval includes the time of the queries.
        let since = std::mem::replace(&mut previous, Instant::now()).elapsed();
        let rate = recent.total() as f64 / since.as_secs_f64();
        let p99 = millis(recent.per_mille(990));
        let writes = format!("{rate:.0} writes per second, p99 {p99}, {failed} failed");
        if screen.terminal {
            let mut lines = block(&members);
            lines.push(writes);
            screen.show(&lines, lines.len());
        } else {
            screen.show(&[format!("{} | {writes}", one_line(&members))], 0);
        }
    }
}

/// All at the same time: with one query after the other, the last member would look the most
/// advanced.
async fn query_all(addresses: &[(String, String)], tls: &ClientTls) -> Vec<DisplayedMember> {
    let mut queries = JoinSet::new();
    for (name, address) in addresses.iter().cloned() {
        let tls = tls.clone();
        queries.spawn(async move { DisplayedMember { name, status: query(&address, &tls).await } });
    }
    let mut members = queries.join_all().await;
    members.sort_by(|one, other| one.name.cmp(&other.name));
    members
}

async fn query(address: &str, tls: &ClientTls) -> Option<etcd::StatusResponse> {
    let connection = client::open(address, tls, REQUEST_TIMEOUT, REQUEST_TIMEOUT).await.ok()?;
    connection.status().await.ok()
}

fn role(member: &DisplayedMember) -> &'static str {
    match &member.status {
        None => "-",
        Some(status) if status.is_learner => "learner",
        Some(status) if status.leader == 0 => "no leader",
        Some(status)
            if status.header.as_ref().is_some_and(|header| header.member_id == status.leader) =>
        {
            "leader"
        }
        Some(_) => "follower",
    }
}

fn furthest(members: &[DisplayedMember]) -> u64 {
    let indexes = members.iter().filter_map(|member| member.status.as_ref());
    indexes.map(|status| status.raft_index).max().unwrap_or(0)
}

fn block(members: &[DisplayedMember]) -> Vec<String> {
    let furthest = furthest(members);
    let row = |member: &DisplayedMember| match &member.status {
        None => format!("{:4} {:9}", member.name, role(member)),
        Some(status) => {
            let behind = furthest.saturating_sub(status.raft_applied_index);
            let bar = progress_bar(furthest - behind, furthest);
            format!("{:4} {:9} {bar} {behind} behind", member.name, role(member))
        }
    };
    members.iter().map(row).collect()
}

fn one_line(members: &[DisplayedMember]) -> String {
    let furthest = furthest(members);
    let part = |member: &DisplayedMember| {
        let status = member.status.as_ref()?;
        let behind = furthest.saturating_sub(status.raft_applied_index);
        Some(format!("{} {} {behind} behind", member.name, role(member)))
    };
    members.iter().filter_map(part).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_fit_on_one_line() {
        let status = |id, index| etcd::StatusResponse {
            header: Some(etcd::ResponseHeader { member_id: id, ..Default::default() }),
            leader: 1,
            raft_index: index,
            raft_applied_index: index,
            ..Default::default()
        };
        let members = [
            DisplayedMember { name: "m1".to_string(), status: Some(status(1, 50)) },
            DisplayedMember { name: "m2".to_string(), status: Some(status(2, 47)) },
            DisplayedMember { name: "m3".to_string(), status: None },
        ];
        assert_eq!(one_line(&members), "m1 leader 0 behind, m2 follower 3 behind");
        assert!(
            block(&members)[1].ends_with("[##################--] 3 behind"),
            "{:?}",
            block(&members)
        );
    }
}
