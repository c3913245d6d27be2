//! `quorate member watch`: what happens to the membership, a line each.
//!
//! The steps of a goal and its end are told by the leader only. So the watch goes to whoever
//! leads, also when that changes.

use std::time::{Duration, Instant};

use quorate_proto::quorate::v1 as wire;
use quorate_proto::quorate::v1::membership_news::News;
use serde_json::json;
use tonic::Status;

use crate::arguments::{ClientArguments, WriteOut};
use crate::client::{Connection, connect};
use crate::failure::Failure;
use crate::print;
use crate::whereabouts::Whereabouts;
use crate::words::Names;

/// How long nobody may answer.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(500);

pub(crate) async fn run(client: &ClientArguments) -> Result<(), Failure> {
    let connection = connect(client).await?;
    let mut watch = Watch {
        write_out: client.write_out,
        names: Names::default(),
        whereabouts: Whereabouts::new(&connection),
        ended: None,
        lost_at: None,
    };
    loop {
        let asked = watch.whereabouts.leader().await;
        if let Err(status) = watch.follow(&asked).await {
            let lost_at = *watch.lost_at.get_or_insert_with(Instant::now);
            if watch.ended.is_none() || lost_at.elapsed() > PATIENCE {
                return Err(Failure::answered("cannot watch", &asked.endpoint, &status));
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

struct Watch {
    write_out: WriteOut,
    names: Names,
    whereabouts: Whereabouts,
    /// Goals that were told to have ended; none before anything was heard.
    ended: Option<Vec<wire::EndedGoal>>,
    /// Since when nobody answers.
    lost_at: Option<Instant>,
}

impl Watch {
    /// Tells what this member says, until another one leads.
    async fn follow(&mut self, asked: &Connection) -> Result<(), Status> {
        let mut stream = asked.membership().watch(wire::WatchRequest {}).await?.into_inner();
        let mut led_by = None;
        while let Some(reply) = stream.message().await? {
            self.lost_at = None;
            if let Some(news) = reply.news.and_then(|news| news.news) {
                self.hear(&news);
            }
            let Some(wire::Header { member_id, leader_id, .. }) = reply.header else { continue };
            let first = *led_by.get_or_insert(leader_id);
            if leader_id != 0 && leader_id != first && leader_id != member_id {
                return Ok(());
            }
        }
        Err(Status::unavailable("the watch has ended"))
    }

    fn hear(&mut self, news: &News) {
        self.names.learn(record(news));
        self.whereabouts.learn(record(news));
        match news {
            News::Now(now) => {
                self.tell(news);
                let ended = now.membership.as_ref().map(|record| record.ended_goals.clone());
                let ended = ended.unwrap_or_default();
                // Those that ended between two leaders, of which neither told it here.
                let told = self.ended.replace(ended.clone()).unwrap_or_else(|| ended.clone());
                let untold = ended.into_iter().filter(|goal| !told.contains(goal));
                untold.for_each(|goal| self.tell(&News::GoalEnded(goal)));
            }
            News::GoalEnded(goal) => {
                self.ended.get_or_insert_default().push(*goal);
                self.tell(news);
            }
            _ => self.tell(news),
        }
    }

    fn tell(&self, news: &News) {
        match self.write_out {
            WriteOut::Table => print::line(&self.names.news(news)),
            WriteOut::Json => print::json(&as_json(&self.names, news)),
        }
    }
}

fn record(news: &News) -> Option<&wire::MembershipRecord> {
    match news {
        News::Now(now) => now.membership.as_ref(),
        News::Committed(record) | News::Counts(record) | News::Settled(record) => Some(record),
        News::Step(_) | News::GoalEnded(_) => None,
    }
}

fn as_json(names: &Names, news: &News) -> serde_json::Value {
    let kind = match news {
        News::Now(_) => "now",
        News::Committed(_) => "committed",
        News::Counts(_) => "counts",
        News::Settled(_) => "settled",
        News::Step(_) => "step",
        News::GoalEnded(_) => "goalEnded",
    };
    let majorities = record(news)
        .map(|record| record.majorities.iter().map(|one| one.voters.clone()).collect::<Vec<_>>());
    json!({
        "news": kind,
        "text": names.news(news),
        "majorities": majorities,
        "learners": record(news).map(|record| record.learners.clone()),
    })
}
