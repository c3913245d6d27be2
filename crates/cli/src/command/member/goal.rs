//! `quorate member replace`, `set`, `plan` and `cancel`: membership changes with a goal.

use std::collections::BTreeSet;

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::quorate::v1 as wire;
use serde_json::json;

use super::{add, list};
use crate::arguments::{ClientArguments, TargetArguments, WaitArguments, WriteOut};
use crate::client::{Connection, connect};
use crate::error::CliError;
use crate::goal_request::{self, ObservedMembership};
use crate::goal_wait::GoalWait;
use crate::ids::{hex_ids, named_id};
use crate::member_lookup;
use crate::membership_text::{MemberNames, entry_id};
use crate::print::{self, TextTable};

pub(crate) async fn replace(
    client: &ClientArguments,
    wait: &WaitArguments,
    old: &str,
    new: &str,
) -> Result<(), CliError> {
    let new = member_lookup::new_member(new)?;
    let connection = connect(client).await?;
    let prepare = |members: &[etcd::Member]| {
        let old = member_lookup::find(members, old)?.id;
        member_lookup::check_name_is_free(members, &new.name)?;
        Ok(replacement(members, old, new.clone()))
    };
    let reply = goal_request::set_goal(&connection, wait.expect, prepare).await?;
    follow_goal(&connection, client, wait, &reply).await
}

pub(crate) async fn set(
    client: &ClientArguments,
    wait: &WaitArguments,
    arguments: &TargetArguments,
) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let prepare = |members: &[etcd::Member]| target(members, arguments);
    let reply = goal_request::set_goal(&connection, wait.expect, prepare).await?;
    follow_goal(&connection, client, wait, &reply).await
}

pub(crate) async fn plan(
    client: &ClientArguments,
    arguments: &TargetArguments,
) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let target = target(&connection.named_members().await?, arguments)?;
    let request = wire::PlanRequest { target: Some(target), expected: None };
    let reply = connection.membership().plan(connection.request(request)).await;
    let reply = reply
        .map_err(|status| {
            CliError::from_status("cannot plan the change", &connection.endpoint, &status)
        })?
        .into_inner();
    let mut names = MemberNames::default();
    names.learn(reply.from.as_ref());
    names.learn_members(&reply.newcomers);
    match client.write_out {
        WriteOut::Table => {
            print::out(&plan_table(&names, &reply));
            let id = entry_id(reply.from.as_ref().and_then(|from| from.id.as_ref()));
            print::line(&format!(
                "planned from membership {id}: add '--expect {id}' to 'member set' or 'member \
                 replace' to make the change only from this membership"
            ));
        }
        WriteOut::Json => print::json(&plan_json(&names, &reply)),
    }
    Ok(())
}

pub(crate) async fn cancel(client: &ClientArguments, wait: &WaitArguments) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let observed = ObservedMembership::read(&connection).await?;
    observed.check_expected(wait.expect)?;
    let reply = goal_request::cancel(&connection, &observed).await?;
    let (new_goal, names) = (entry_id(reply.goal_id.as_ref()), &observed.names);
    if let Some(goal) = &observed.record.goal {
        let text = format!(
            "cancelling; goal {} to {} is abandoned, and goal {new_goal} restores {}: members \
             that it added are removed again",
            entry_id(goal.id.as_ref()),
            names.goal_target(goal),
            names.goal_origin(goal),
        );
        print::note(client.write_out, &text);
    }
    finish(&connection, client, wait, reply.goal_id).await
}

/// The present members with one of them replaced.
pub(crate) fn replacement(
    members: &[etcd::Member],
    old: u64,
    new: wire::NewMember,
) -> wire::Target {
    let others = |learner| {
        let same_role = members.iter().filter(move |member| member.is_learner == learner);
        same_role
            .filter(|member| member.id != old)
            .map(|member| member_lookup::existing_target(member.id))
    };
    let mut target =
        wire::Target { voters: others(false).collect(), learners: others(true).collect() };
    let is_voter = members.iter().any(|member| member.id == old && !member.is_learner);
    // The new member gets the role of the old one.
    if is_voter { &mut target.voters } else { &mut target.learners }
        .push(member_lookup::new_target(new));
    target
}

fn target(members: &[etcd::Member], arguments: &TargetArguments) -> Result<wire::Target, CliError> {
    let all = |list: &[String]| -> Result<Vec<_>, CliError> {
        list.iter().map(|text| member_lookup::target(members, text)).collect()
    };
    let target =
        wire::Target { voters: all(&arguments.voters)?, learners: all(&arguments.learners)? };
    member_lookup::check_names(members, &target)?;
    Ok(target)
}

/// Prints how to start the new members, and waits for the end of the goal.
async fn follow_goal(
    connection: &Connection,
    client: &ClientArguments,
    wait: &WaitArguments,
    reply: &wire::SetGoalReply,
) -> Result<(), CliError> {
    let note = |text: &str| print::note(client.write_out, text);
    if reply.ended.is_some() {
        note("the cluster already has these members; nothing was changed");
        return list::print_members(connection, client.write_out).await;
    }
    note(&format!("goal {} is set", entry_id(reply.goal_id.as_ref())));
    for joining in &reply.newcomers {
        let known = reply.membership.as_ref().map_or(&[][..], |record| &record.members);
        note(&format!("start {} with these variables:", named_id(&joining.name, joining.id)));
        for (key, value) in add::settings(&joining.name, joining.id, &as_etcd(known, joining)) {
            note(&format!("  {key}=\"{value}\""));
        }
    }
    finish(connection, client, wait, reply.goal_id).await
}

/// The present members and the joining one, which may not be in the list yet.
fn as_etcd(members: &[wire::Member], joining: &wire::Member) -> Vec<etcd::Member> {
    let others = members.iter().filter(|member| member.id != joining.id);
    let convert = |member: &wire::Member| etcd::Member {
        id: member.id,
        name: member.name.clone(),
        peer_urls: member.peer_urls.clone(),
        ..Default::default()
    };
    others.chain([joining]).map(convert).collect()
}

async fn finish(
    connection: &Connection,
    client: &ClientArguments,
    wait: &WaitArguments,
    goal: Option<wire::EntryId>,
) -> Result<(), CliError> {
    if let Some(goal) = goal.filter(|_| !wait.no_wait) {
        let wait = GoalWait { timeout: wait.timeout, progress: Some(client.write_out) };
        tokio::select! {
            ended = wait.run(connection, goal) => ended?,
            interrupted = interrupted(goal) => return Err(interrupted),
        };
        print::note(client.write_out, "done and settled");
    }
    // The member of the first connection may have been removed.
    let connection = connect(client).await?;
    list::print_members(&connection, client.write_out).await
}

/// Waits for Ctrl-C. The goal does not end with this command, so say what continues.
async fn interrupted(goal: wire::EntryId) -> CliError {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a handler the signal ends the process.
        std::future::pending::<()>().await;
    }
    CliError::Interrupted(format!(
        "interrupted; nothing is undone and the cluster continues with goal {}: follow it with \
         'quorate member watch' or 'quorate status', or undo it with 'quorate member cancel'",
        entry_id(Some(&goal)),
    ))
}

fn plan_table(names: &MemberNames, plan: &wire::PlanReply) -> String {
    let mut table = TextTable::new(&[
        "#",
        "STEP",
        "VOTERS AFTER",
        "LOSSES THAT STOP COMMITS",
        "LOSSES THAT STOP ELECTIONS",
    ]);
    if let Some(from) = &plan.from {
        let losses = names.losses(&stopping_losses(from));
        table.row([
            "0".to_string(),
            "(current)".to_string(),
            names.membership(from),
            losses.clone(),
            losses,
        ]);
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

/// The smallest losses, of one or two members, after which this membership has no quorum: for
/// the steps of a plan the server reports them.
fn stopping_losses(record: &wire::MembershipRecord) -> Vec<wire::MemberIds> {
    let stops = |lost: &[u64]| {
        record.majorities.iter().any(|majority| {
            let left = majority.voters.iter().filter(|id| !lost.contains(id)).count();
            left < majority.quorum as usize
        })
    };
    let voters = record.majorities.iter().flat_map(|majority| majority.voters.iter().copied());
    let voters: BTreeSet<u64> = voters.collect();
    let (single, others): (Vec<u64>, Vec<u64>) = voters.iter().partition(|id| stops(&[**id]));
    let mut losses: Vec<Vec<u64>> = single.into_iter().map(|id| vec![id]).collect();
    for (at, first) in others.iter().enumerate() {
        let pairs = others[at + 1..].iter().map(|second| vec![*first, *second]);
        losses.extend(pairs.filter(|pair| stops(pair)));
    }
    losses.into_iter().map(|ids| wire::MemberIds { ids }).collect()
}

fn plan_json(names: &MemberNames, plan: &wire::PlanReply) -> serde_json::Value {
    let ids = |losses: &[wire::MemberIds]| -> Vec<Vec<String>> {
        losses.iter().map(|loss| hex_ids(&loss.ids)).collect()
    };
    let steps: Vec<_> = plan
        .steps
        .iter()
        .map(|planned| {
            json!({
                "step": planned.step.as_ref().map(|step| names.step(step)),
                "majorities": planned.membership.as_ref().map(|record| {
                    record.majorities.iter().map(|one| hex_ids(&one.voters)).collect::<Vec<_>>()
                }),
                "learners": planned.membership.as_ref().map(|record| hex_ids(&record.learners)),
                "stopsCommits": ids(&planned.stops_commits),
                "stopsElections": ids(&planned.stops_elections),
            })
        })
        .collect();
    let from = plan.from.as_ref().and_then(|from| from.id.as_ref());
    json!({ "membership": entry_id(from), "steps": steps })
}

#[cfg(test)]
mod tests {
    use quorate_proto::quorate::v1::target_member::Member;

    use super::*;

    fn member(id: u64, is_learner: bool) -> etcd::Member {
        etcd::Member { id, is_learner, ..Default::default() }
    }

    #[test]
    fn the_new_member_gets_the_role_of_the_old_one() {
        let members = [member(1, false), member(2, false), member(3, true)];
        let new = || member_lookup::new_member("d=http://h:1").unwrap();
        let is_new = |one: &wire::TargetMember| matches!(one.member, Some(Member::New(_)));
        let voter = replacement(&members, 2, new());
        assert_eq!((voter.voters.len(), voter.learners.len()), (2, 1));
        assert_eq!(voter.voters[0], member_lookup::existing_target(1));
        assert!(is_new(&voter.voters[1]));
        let learner = replacement(&members, 3, new());
        assert_eq!((learner.voters.len(), learner.learners.len()), (2, 1));
        assert!(is_new(&learner.learners[0]));
    }

    #[test]
    fn losses_of_a_joint_are_those_of_either_majority() {
        let majority = |voters: &[u64]| wire::Majority {
            voters: voters.to_vec(),
            quorum: voters.len() as u32 / 2 + 1,
        };
        let record = wire::MembershipRecord {
            majorities: vec![majority(&[1]), majority(&[1, 2, 3])],
            ..Default::default()
        };
        let losses: Vec<_> = stopping_losses(&record).into_iter().map(|loss| loss.ids).collect();
        assert_eq!(losses, [vec![1], vec![2, 3]]);
    }

    #[test]
    fn a_plan_shows_each_step_and_its_risks() {
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
        let from = planned.membership.clone();
        let plan = wire::PlanReply { steps: vec![planned], from, ..Default::default() };
        let mut names = MemberNames::default();
        names.learn_members(&[1, 2, 3].map(|id| wire::Member {
            id,
            name: format!("m{id}"),
            ..Default::default()
        }));
        let text = plan_table(&names, &plan);
        let losses = "m1+m2; m1+m3; m2+m3";
        let current = format!("| 0 | (current) | {{m1 m2 m3}}   | {losses}      | {losses} ");
        assert!(text.contains(&current), "{text}");
        assert!(text.contains("| 1 | settle    | {m1 m2 m3}   | m1+m2 "), "{text}");
        let json = plan_json(&names, &plan);
        assert_eq!(
            json["steps"][0]["stopsCommits"],
            json!([["0000000000000001", "0000000000000002"]])
        );
    }
}
