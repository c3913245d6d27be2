//! `quorate member watch`: prints membership events, one line each.
//!
//! Only the leader reports the steps of a goal and its end, so the watch follows the leader.

use std::time::{Duration, Instant, SystemTime};

use quorate_proto::quorate::v1 as wire;
use quorate_proto::quorate::v1::membership_event::Event;
use quorate_server::logs::timestamp;
use serde_json::json;
use tonic::Status;

use crate::arguments::{ClientArguments, WriteOut};
use crate::client::{Connection, connect, is_unreachable};
use crate::error::CliError;
use crate::ids::hex_ids;
use crate::leader_finder::LeaderFinder;
use crate::membership_text::MemberNames;
use crate::print;

/// The watch ends with an error when no member has answered for this long.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);

pub(crate) async fn run(client: &ClientArguments) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let mut watch = MembershipPrinter {
        write_out: client.write_out,
        names: MemberNames::default(),
        finder: LeaderFinder::new(&connection),
        printed_ends: None,
        disconnected_since: None,
    };
    loop {
        let leader = watch.finder.leader().await;
        if let Err(status) = watch.follow(&leader).await
            && !watch.may_reconnect(&status)
        {
            let context = "cannot watch the membership";
            return Err(CliError::from_status(context, &leader.endpoint, &status));
        }
        tokio::time::sleep(RECONNECT_INTERVAL).await;
    }
}

struct MembershipPrinter {
    write_out: WriteOut,
    names: MemberNames,
    finder: LeaderFinder,
    /// Goals whose end was printed; none before the first event.
    printed_ends: Option<Vec<wire::EndedGoal>>,
    /// Since when no member has answered.
    disconnected_since: Option<Instant>,
}

impl MembershipPrinter {
    /// Whether the watch may continue with another member: the first one must have worked.
    fn may_reconnect(&mut self, status: &Status) -> bool {
        let since = *self.disconnected_since.get_or_insert_with(Instant::now);
        let in_time = since.elapsed() <= RECONNECT_TIMEOUT;
        is_unreachable(status) && self.printed_ends.is_some() && in_time
    }

    /// Prints the events of this member until another member becomes the leader.
    async fn follow(&mut self, connection: &Connection) -> Result<(), Status> {
        let mut stream = connection.membership().watch(wire::WatchRequest {}).await?.into_inner();
        let mut first_leader = None;
        while let Some(reply) = stream.message().await? {
            self.disconnected_since = None;
            if let Some(event) = reply.event.and_then(|event| event.event) {
                self.on_event(&event);
            }
            let Some(wire::Header { member_id, leader_id, .. }) = reply.header else { continue };
            let first = *first_leader.get_or_insert(leader_id);
            if leader_id != 0 && leader_id != first && leader_id != member_id {
                return Ok(());
            }
        }
        Err(Status::unavailable("the server ended the watch"))
    }

    fn on_event(&mut self, event: &Event) {
        self.names.learn(record(event));
        self.finder.update(record(event));
        match event {
            Event::Current(now) => {
                self.print(event);
                let ended = now.membership.as_ref().map(|record| record.ended_goals.clone());
                let ended = ended.unwrap_or_default();
                // Goals that ended while the watch moved from one leader to the next.
                let printed = self.printed_ends.replace(ended.clone());
                let printed = printed.unwrap_or_else(|| ended.clone());
                let missed = ended.into_iter().filter(|goal| !printed.contains(goal));
                missed.for_each(|goal| self.print(&Event::GoalEnded(goal)));
            }
            Event::GoalEnded(goal) => {
                self.printed_ends.get_or_insert_default().push(*goal);
                self.print(event);
            }
            _ => self.print(event),
        }
    }

    fn print(&self, event: &Event) {
        // When this command learned of it; the event itself has no time.
        let time = timestamp(SystemTime::now(), 3);
        match self.write_out {
            WriteOut::Table => print::line(&format!("{time} {}", self.names.event(event))),
            WriteOut::Json => print::json(&as_json(&self.names, event, &time)),
        }
    }
}

fn record(event: &Event) -> Option<&wire::MembershipRecord> {
    match event {
        Event::Current(now) => now.membership.as_ref(),
        Event::Committed(record) | Event::Active(record) | Event::Settled(record) => Some(record),
        Event::Step(_) | Event::GoalEnded(_) => None,
    }
}

fn as_json(names: &MemberNames, event: &Event, time: &str) -> serde_json::Value {
    let kind = match event {
        Event::Current(_) => "current",
        Event::Committed(_) => "committed",
        Event::Active(_) => "active",
        Event::Settled(_) => "settled",
        Event::Step(_) => "step",
        Event::GoalEnded(_) => "goalEnded",
    };
    let majorities = record(event)
        .map(|record| record.majorities.iter().map(|one| hex_ids(&one.voters)).collect::<Vec<_>>());
    json!({
        "time": time,
        "event": kind,
        "text": names.event(event),
        "majorities": majorities,
        "learners": record(event).map(|record| hex_ids(&record.learners)),
    })
}
