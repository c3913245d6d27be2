//! `quorate member watch`: what happens to the membership, a line each.

use quorate_proto::quorate::v1 as wire;
use quorate_proto::quorate::v1::membership_news::News;
use serde_json::json;

use crate::arguments::{ClientArguments, WriteOut};
use crate::client::{connect, leader_of};
use crate::failure::Failure;
use crate::print;
use crate::words::Names;

pub(crate) async fn run(client: &ClientArguments) -> Result<(), Failure> {
    let connection = connect(client).await?;
    // The steps of a goal are told by the leader only.
    let connection = leader_of(&connection).await;
    let failed = |status| Failure::answered("cannot watch", &connection.endpoint, &status);
    let stream = connection.membership().watch(wire::WatchRequest {}).await.map_err(failed)?;
    let mut stream = stream.into_inner();
    let mut names = Names::default();
    while let Some(reply) = stream.message().await.map_err(failed)? {
        let Some(news) = reply.news.and_then(|news| news.news) else { continue };
        names.learn(record(&news));
        match client.write_out {
            WriteOut::Table => print::line(&names.news(&news)),
            WriteOut::Json => print::json(&as_json(&names, &news)),
        }
    }
    Err(Failure::failed(format!("{} ended the watch; ask again", connection.endpoint)))
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
