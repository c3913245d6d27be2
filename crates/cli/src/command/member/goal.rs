//! `quorate member replace`, `set`, `plan` and `cancel`: where to go, in one request.

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::quorate::v1 as wire;
use serde_json::json;

use super::{add, list};
use crate::arguments::{ClientArguments, TargetArguments, WaitArguments, WriteOut};
use crate::client::{Connection, connect};
use crate::failure::Failure;
use crate::follow::Follow;
use crate::print::{self, Table};
use crate::who;
use crate::words::{Names, entry};

pub(crate) async fn replace(
    client: &ClientArguments,
    wait: &WaitArguments,
    old: &str,
    new: &str,
) -> Result<(), Failure> {
    let new = who::new_member(new)?;
    let connection = connect(client).await?;
    let members = connection.named_members().await?;
    let old = who::find(&members, old)?.id;
    who::check_free(&members, &new.name)?;
    let target = replacement(&members, old, new);
    pursue(&connection, client, wait, target).await
}

pub(crate) async fn set(
    client: &ClientArguments,
    wait: &WaitArguments,
    asked: &TargetArguments,
) -> Result<(), Failure> {
    let connection = connect(client).await?;
    let target = target(&connection.named_members().await?, asked)?;
    pursue(&connection, client, wait, target).await
}

pub(crate) async fn plan(client: &ClientArguments, asked: &TargetArguments) -> Result<(), Failure> {
    let connection = connect(client).await?;
    let target = target(&connection.named_members().await?, asked)?;
    let request = wire::PlanRequest { target: Some(target), expected: None };
    let reply = connection.membership().plan(connection.request(request)).await;
    let reply = reply
        .map_err(|status| Failure::answered("cannot plan", &connection.endpoint, &status))?
        .into_inner();
    let mut names = Names::default();
    names.learn(reply.from.as_ref());
    names.learn_members(&reply.newcomers);
    match client.write_out {
        WriteOut::Table => print::out(&plan_table(&names, &reply)),
        WriteOut::Json => print::json(&plan_json(&names, &reply)),
    }
    Ok(())
}

pub(crate) async fn cancel(client: &ClientArguments, wait: &WaitArguments) -> Result<(), Failure> {
    let connection = connect(client).await?;
    let request = wire::CancelRequest { wait: false, expected: None };
    let reply = connection.membership().cancel(connection.request(request)).await;
    let reply = reply
        .map_err(|status| Failure::answered("cannot cancel", &connection.endpoint, &status))?
        .into_inner();
    eprintln!("going back; goal {}", entry(reply.goal_id.as_ref()));
    finish(&connection, client, wait, reply.goal_id).await
}

/// The same voters, but for one.
pub(crate) fn replacement(
    members: &[etcd::Member],
    old: u64,
    new: wire::NewMember,
) -> wire::Target {
    let stays = |learner| {
        let those = members.iter().filter(move |member| member.is_learner == learner);
        those.filter(|member| member.id != old).map(|member| who::known(member.id))
    };
    let mut target =
        wire::Target { voters: stays(false).collect(), learners: stays(true).collect() };
    let votes = members.iter().any(|member| member.id == old && !member.is_learner);
    // Who comes is what the other was.
    if votes { &mut target.voters } else { &mut target.learners }.push(who::fresh(new));
    target
}

fn target(members: &[etcd::Member], asked: &TargetArguments) -> Result<wire::Target, Failure> {
    let all = |list: &[String]| -> Result<Vec<_>, Failure> {
        list.iter().map(|text| who::target(members, text)).collect()
    };
    let target = wire::Target { voters: all(&asked.voters)?, learners: all(&asked.learners)? };
    who::check_names(members, &target)?;
    Ok(target)
}

async fn pursue(
    connection: &Connection,
    client: &ClientArguments,
    wait: &WaitArguments,
    target: wire::Target,
) -> Result<(), Failure> {
    let request = wire::SetGoalRequest { target: Some(target), wait: false, expected: None };
    let reply = connection.membership().set_goal(connection.request(request)).await;
    let reply = reply
        .map_err(|status| Failure::answered("refused", &connection.endpoint, &status))?
        .into_inner();
    if reply.ended.is_some() {
        eprintln!("the members are as wished already");
        return list::show_now(connection, client.write_out).await;
    }
    eprintln!("goal {} is set", entry(reply.goal_id.as_ref()));
    for newcomer in &reply.newcomers {
        let known = reply.membership.as_ref().map_or(&[][..], |record| &record.members);
        eprintln!("start {} with", newcomer.name);
        for (key, value) in add::settings(&newcomer.name, newcomer.id, &as_etcd(known, newcomer)) {
            eprintln!("  {key}=\"{value}\"");
        }
    }
    finish(connection, client, wait, reply.goal_id).await
}

/// Those there are and the one to come, which may not be a member yet.
fn as_etcd(members: &[wire::Member], newcomer: &wire::Member) -> Vec<etcd::Member> {
    let others = members.iter().filter(|member| member.id != newcomer.id);
    let plain = |member: &wire::Member| etcd::Member {
        id: member.id,
        name: member.name.clone(),
        peer_urls: member.peer_urls.clone(),
        ..Default::default()
    };
    others.chain([newcomer]).map(plain).collect()
}

async fn finish(
    connection: &Connection,
    client: &ClientArguments,
    wait: &WaitArguments,
    goal: Option<wire::EntryId>,
) -> Result<(), Failure> {
    if let Some(goal) = goal.filter(|_| !wait.no_wait) {
        let follow = Follow { patience: wait.patience, told: true };
        follow.goal(connection, goal).await?;
        eprintln!("done and settled");
    }
    // The one that was asked may be the one that left.
    let connection = connect(client).await?;
    list::show_now(&connection, client.write_out).await
}

fn plan_table(names: &Names, plan: &wire::PlanReply) -> String {
    let mut table = Table::new(&[
        "#",
        "STEP",
        "THEN COUNT",
        "STOPS COMMITS IF LOST",
        "STOPS ELECTIONS IF LOST",
    ]);
    if let Some(from) = &plan.from {
        table.row(["0".to_string(), "as it is".to_string(), names.membership(from)]);
    }
    for (number, planned) in plan.steps.iter().enumerate() {
        table.row([
            (number + 1).to_string(),
            planned.step.as_ref().map_or_else(String::new, |step| names.step(step)),
            planned.membership.as_ref().map_or_else(String::new, |record| names.membership(record)),
            names.losses(&planned.stops_commits),
            names.losses(&planned.stops_elections),
        ]);
    }
    table.text()
}

fn plan_json(names: &Names, plan: &wire::PlanReply) -> serde_json::Value {
    let ids = |losses: &[wire::MemberIds]| -> Vec<Vec<u64>> {
        losses.iter().map(|loss| loss.ids.clone()).collect()
    };
    let steps: Vec<_> = plan
        .steps
        .iter()
        .map(|planned| {
            json!({
                "step": planned.step.as_ref().map(|step| names.step(step)),
                "majorities": planned.membership.as_ref().map(|record| {
                    record.majorities.iter().map(|one| one.voters.clone()).collect::<Vec<_>>()
                }),
                "learners": planned.membership.as_ref().map(|record| record.learners.clone()),
                "stopsCommits": ids(&planned.stops_commits),
                "stopsElections": ids(&planned.stops_elections),
            })
        })
        .collect();
    json!({ "steps": steps })
}

#[cfg(test)]
mod tests {
    use quorate_proto::quorate::v1::target_member::Member;

    use super::*;

    fn member(id: u64, is_learner: bool) -> etcd::Member {
        etcd::Member { id, is_learner, ..Default::default() }
    }

    #[test]
    fn who_comes_is_what_the_other_was() {
        let members = [member(1, false), member(2, false), member(3, true)];
        let new = || who::new_member("d=http://h:1").unwrap();
        let is_new = |one: &wire::TargetMember| matches!(one.member, Some(Member::New(_)));
        let voter = replacement(&members, 2, new());
        assert_eq!((voter.voters.len(), voter.learners.len()), (2, 1));
        assert_eq!(voter.voters[0], who::known(1));
        assert!(is_new(&voter.voters[1]));
        let learner = replacement(&members, 3, new());
        assert_eq!((learner.voters.len(), learner.learners.len()), (2, 1));
        assert!(is_new(&learner.learners[0]));
    }

    #[test]
    fn a_plan_names_each_step_and_what_could_stop_it() {
        let step = wire::Step {
            text: String::new(),
            kind: Some(wire::step::Kind::Settle(wire::step::Settle {})),
        };
        let record = wire::MembershipRecord {
            majorities: vec![wire::Majority { voters: vec![1, 2, 3], quorum: 2 }],
            ..Default::default()
        };
        let planned = wire::PlannedStep {
            step: Some(step),
            membership: Some(record),
            stops_commits: vec![wire::MemberIds { ids: vec![1, 2] }],
            stops_elections: Vec::new(),
        };
        let plan = wire::PlanReply { steps: vec![planned], ..Default::default() };
        let text = plan_table(&Names::default(), &plan);
        assert!(text.contains("| 1 | settle | {1 2 3}    | 1+2 "), "{text}");
        let json = plan_json(&Names::default(), &plan);
        assert_eq!(json["steps"][0]["stopsCommits"], json!([[1, 2]]));
    }
}
