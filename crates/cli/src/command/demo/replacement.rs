//! The heart of the demo: a fresh fourth member takes the place of one of the three.
//!
//! Where the server knows goals it is one request. A server that has only etcd's calls is
//! led through the steps by hand.

use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::quorate::v1 as wire;
use quorate_proto::quorate::v1::membership_news::News;
use tonic::{Code, Status};

use super::members::Members;
use super::view::View;
use crate::client::Connection;
use crate::command::member::replacement;
use crate::failure::{Failure, said};
use crate::follow::Follow;
use crate::who;
use crate::words::Names;

const NEW: usize = 4;
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Whom to replace: the one that leads, or one that does not.
pub(super) async fn choose(members: &Members, leader: bool) -> Result<usize, Failure> {
    let connection = members.connect(1).await?;
    let status = connection.status().await;
    let status =
        status.map_err(|why| Failure::answered("who leads", &connection.endpoint, &why))?;
    let list = connection.members().await?;
    for number in 1..=3 {
        let name = format!("m{number}");
        if (who::find(&list, &name)?.id == status.leader) == leader {
            return Ok(number);
        }
    }
    Err(Failure::failed("nobody leads"))
}

pub(super) async fn run(members: &mut Members, view: &View, old: usize) -> Result<(), Failure> {
    // Not the one to go: it may be gone before it can tell the end.
    let asked = members.connect(if old == 1 { 2 } else { 1 }).await?;
    let list = asked.members().await?;
    let old_id = who::find(&list, &format!("m{old}"))?.id;
    let began = Instant::now();
    view.say(&format!("m{NEW} is to replace m{old}"));
    let new = who::new_member(&format!("m{NEW}={}", members.peer_url(NEW)))?;
    let request = wire::SetGoalRequest {
        target: Some(replacement(&list, old_id, new)),
        wait: false,
        expected: None,
    };
    match asked.membership().set_goal(asked.request(request)).await {
        Ok(reply) => {
            let goal = reply.into_inner().goal_id.unwrap_or_default();
            start_new(members, &asked).await?;
            pursue(members, view, &asked, goal).await?;
        }
        Err(status) if status.code() == Code::Unimplemented => {
            step_by_step(members, view, &asked, old_id).await?;
        }
        Err(status) => {
            return Err(Failure::answered("the replacement was refused", &asked.endpoint, &status));
        }
    }
    let took = began.elapsed().as_secs_f64();
    view.say(&format!("m{NEW} has replaced m{old}: settled after {took:.1} s"));
    Ok(())
}

/// Starts it once it is a member: it looks for itself among those who are.
async fn start_new(members: &mut Members, asked: &Connection) -> Result<(), Failure> {
    let url = members.peer_url(NEW);
    let began = Instant::now();
    loop {
        let list = asked.members().await?;
        if list.iter().any(|member| member.peer_urls.contains(&url)) {
            return members.start_joining(NEW, &cluster(&list, &url));
        }
        if began.elapsed() > PATIENCE {
            return Err(Failure::failed(format!("{url} does not become a member")));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// `name=url` of all. The new one has told nobody its name yet.
fn cluster(list: &[etcd::Member], new_url: &str) -> String {
    let own_name = format!("m{NEW}");
    let pair = |member: &etcd::Member| {
        let is_new = member.peer_urls.iter().any(|url| url == new_url);
        let name = if is_new { &own_name } else { &member.name };
        member.peer_urls.iter().map(|url| format!("{name}={url}")).collect::<Vec<_>>().join(",")
    };
    list.iter().map(pair).collect::<Vec<_>>().join(",")
}

async fn pursue(
    members: &mut Members,
    view: &View,
    asked: &Connection,
    goal: wire::EntryId,
) -> Result<(), Failure> {
    let follow = Follow { patience: PATIENCE, told: false };
    let mut ended = std::pin::pin!(follow.goal(asked, goal));
    let mut telling = std::pin::pin!(tell(view, asked));
    loop {
        tokio::select! {
            biased;
            told = &mut telling => told?,
            ended = &mut ended => return ended.map(|_| ()),
            () = tokio::time::sleep(LOOK_EVERY) => members.check_runs(NEW)?,
        }
    }
}

/// Says which members count, each time that changes, and does not end by itself.
async fn tell(view: &View, asked: &Connection) -> Result<(), Failure> {
    let failed = |status| Failure::answered("cannot watch", &asked.endpoint, &status);
    let stream = asked.membership().watch(wire::WatchRequest {}).await.map_err(failed)?;
    let mut stream = stream.into_inner();
    let mut names = Names::default();
    while let Some(reply) = stream.message().await.map_err(failed)? {
        match reply.news.and_then(|news| news.news) {
            Some(News::Now(now)) => names.learn(now.membership.as_ref()),
            Some(News::Counts(record)) => {
                names.learn(Some(&record));
                view.say(&format!("  {}", names.membership(&record)));
            }
            _ => {}
        }
    }
    std::future::pending().await
}

async fn step_by_step(
    members: &mut Members,
    view: &View,
    asked: &Connection,
    old_id: u64,
) -> Result<(), Failure> {
    let add = etcd::MemberAddRequest { peer_urls: vec![members.peer_url(NEW)], is_learner: true };
    let added = patiently("cannot add", async || {
        asked.cluster().member_add(asked.request(add.clone())).await
    });
    let new_id = added.await?.into_inner().member.map_or(0, |member| member.id);
    view.say(&format!("  m{NEW} is added as a learner"));
    start_new(members, asked).await?;
    let promote = etcd::MemberPromoteRequest { id: new_id };
    let promoted = patiently("cannot promote", async || {
        asked.cluster().member_promote(asked.request(promote)).await
    });
    promoted.await?;
    view.say(&format!("  m{NEW} has caught up and votes"));
    let remove = etcd::MemberRemoveRequest { id: old_id };
    let removed = patiently("cannot remove", async || {
        asked.cluster().member_remove(asked.request(remove)).await
    });
    removed.await.map(|_| ())
}

/// etcd refuses until members have been connected for a while, and a learner is near enough.
async fn patiently<T>(
    what: &str,
    mut ask: impl AsyncFnMut() -> Result<T, Status>,
) -> Result<T, Failure> {
    let began = Instant::now();
    loop {
        match ask().await {
            Ok(reply) => return Ok(reply),
            Err(status) if began.elapsed() > PATIENCE => {
                return Err(Failure::failed(format!("{what}: {}", said(&status))));
            }
            Err(_) => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_one_is_named_though_nobody_knows_its_name() {
        let member = |name: &str, url: &str| etcd::Member {
            name: name.to_string(),
            peer_urls: vec![url.to_string()],
            ..Default::default()
        };
        let list = [member("m1", "http://h:1"), member("", "http://h:4")];
        assert_eq!(cluster(&list, "http://h:4"), "m1=http://h:1,m4=http://h:4");
    }
}
