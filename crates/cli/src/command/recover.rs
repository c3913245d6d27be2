//! `quorate recover`: creates a new cluster from one stopped member, when the others are lost
//! or all are stopped.
//!
//! Without a confirmation it only shows the consequences, and prints the confirmation for
//! exactly that state.

use quorate_server::Url;
use quorate_server::config::{self, Invocation, ServerConfig};
use quorate_server::recover::{ForcedCluster, RecoverError, RecoveryPlan, plan_recovery, recover};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::arguments::{RecoverArguments, WriteOut};
use crate::error::CliError;
use crate::ids::{hex_id, named_id};
use crate::print::{self, line};

pub(crate) fn run(arguments: &RecoverArguments) -> Result<(), CliError> {
    let config = server_config(arguments)?;
    let failed = |error: RecoverError| {
        CliError::with_cause(&format!("cannot recover {}", arguments.data_dir.display()), &error)
    };
    let plan = plan_recovery(&config).map_err(failed)?;
    let as_json = arguments.output.write_out == WriteOut::Json;
    if plan.members.len() == 1 {
        match as_json {
            true => print::json(&plan_json(&plan, None)),
            false => print_nothing_to_do(&plan),
        }
        return Ok(());
    }
    let expected = confirmation(&plan);
    match &arguments.confirm {
        Some(given) if *given == expected => {}
        Some(given) => {
            return Err(CliError::failed(format!(
                "'{given}' does not confirm the present state; run the command again without --confirm"
            )));
        }
        None if as_json => {
            print::json(&plan_json(&plan, Some(&expected)));
            return Ok(());
        }
        None => {
            consequences(&plan).iter().for_each(|text| line(text));
            line(&format!("to recover, run: {} --confirm {expected}", command_line(arguments)));
            return Ok(());
        }
    }
    match recover(&config).map_err(failed)? {
        None => print_nothing_to_do(&plan),
        Some(forced) if as_json => print::json(&json!({
            "clusterID": hex_id(forced.cluster_id),
            "ID": hex_id(forced.member.0),
            "lastEntry": forced.last_index,
            "uncommittedEntries": forced.uncommitted,
            "oldDirectory": forced.old_directory.display().to_string(),
        })),
        Some(forced) => print_next_steps(&plan, &forced, arguments),
    }
    Ok(())
}

/// The plan, with the value for `--confirm` unless there is nothing to do.
fn plan_json(plan: &RecoveryPlan, confirm: Option<&str>) -> serde_json::Value {
    let members = plan.members.iter();
    let members = members.map(|(id, name)| json!({ "ID": hex_id(id.0), "name": name }));
    json!({
        "clusterID": hex_id(plan.cluster_id),
        "ID": hex_id(plan.member.0),
        "name": plan.name,
        "members": members.collect::<Vec<_>>(),
        "committedEntry": plan.committed,
        "lastEntry": plan.last,
        "revision": plan.revision,
        "confirm": confirm,
    })
}

fn print_nothing_to_do(plan: &RecoveryPlan) {
    line(&format!("{} is the only member of its cluster; nothing was changed", plan.name));
    line("start it, then add members with 'quorate member add' or 'quorate member set'");
}

/// The configuration of the recovered member. `--members` is parsed like the server's
/// `--initial-cluster`.
fn server_config(arguments: &RecoverArguments) -> Result<ServerConfig, CliError> {
    let mut config = ServerConfig::default();
    if let Some(members) = &arguments.members {
        let flags = ["--initial-cluster".to_string(), members.clone()];
        let invalid = |problem: String| {
            let problem = problem.replace("--initial-cluster", "--members");
            let example = "m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380";
            CliError::usage(format!("{problem}; an example is {example}"))
        };
        match config::parse(flags, []).map_err(|error| invalid(error.to_string()))? {
            Invocation::Run(read) => config = *read,
            Invocation::Help | Invocation::Version => {
                return Err(invalid("--members is empty".to_string()));
            }
        }
        if config.initial_cluster.is_empty() {
            return Err(invalid("--members is empty".to_string()));
        }
    }
    Ok(ServerConfig {
        data_dir: arguments.data_dir.clone(),
        wal_dir: arguments.wal_dir.clone(),
        ..config
    })
}

/// This command with the same arguments.
fn command_line(arguments: &RecoverArguments) -> String {
    let mut text = format!("quorate recover --data-dir {}", arguments.data_dir.display());
    if let Some(path) = &arguments.wal_dir {
        text += &format!(" --wal-dir {}", path.display());
    }
    if let Some(members) = &arguments.members {
        text += &format!(" --members {members}");
    }
    text
}

/// Valid for this state and these members only: the command does exactly what it has shown.
fn confirmation(plan: &RecoveryPlan) -> String {
    let RecoveryPlan { cluster_id, committed, last, .. } = plan;
    let mut text = format!("{}-{committed}-{last}", hex_id(*cluster_id));
    let moves = plan.new_peer_urls.as_ref().map(|urls| (&plan.name, urls));
    let members = plan.joining_members.iter().map(|(name, urls)| (name, urls)).chain(moves);
    let mut members: Vec<_> = members.map(|(name, urls)| pair(name, urls)).collect();
    if !members.is_empty() {
        members.sort();
        let digest = Sha256::digest(members.join(" "));
        let digest: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        text += &format!("-{digest}");
    }
    text
}

fn pair(name: &str, urls: &[Url]) -> String {
    let pair = |url: &Url| format!("{name}={url}");
    urls.iter().map(pair).collect::<Vec<_>>().join(",")
}

fn consequences(plan: &RecoveryPlan) -> Vec<String> {
    let others = plan.members.iter().filter(|(id, _)| *id != plan.member);
    let others: Vec<_> = others.map(|(id, name)| named_id(name, id.0)).collect();
    let uncertain = plan.last.saturating_sub(plan.committed);
    let mut lines = vec![
        format!(
            "{} of cluster {} holds revision {} (entry {})",
            named_id(&plan.name, plan.member.0),
            hex_id(plan.cluster_id),
            plan.revision,
            plan.last
        ),
        format!("members that would be removed: {}", listed(&others)),
        format!("data that would be kept: {}", kept(uncertain)),
        "data that would be lost: writes that were acknowledged without this member; compare the \
         disks of the other members first, and recover from the one with the highest entry"
            .to_string(),
        "the new cluster gets a new id and rejects the old members".to_string(),
    ];
    if let Some(urls) = &plan.new_peer_urls {
        lines.push(format!("its new peer URLs: {}", pair(&plan.name, urls)));
    }
    let joining_members: Vec<_> =
        plan.joining_members.iter().map(|(name, urls)| pair(name, urls)).collect();
    if !joining_members.is_empty() {
        lines.push(format!(
            "members that would join with empty data directories, as voters once caught up: {}",
            joining_members.join(", ")
        ));
    }
    lines
}

fn listed(others: &[String]) -> String {
    if others.is_empty() { "none".to_string() } else { others.join(", ") }
}

fn kept(uncertain: u64) -> String {
    match uncertain {
        0 => "everything on this disk, all of it committed".to_string(),
        1 => "everything on this disk; it is unknown whether the last entry was committed"
            .to_string(),
        count => format!(
            "everything on this disk; it is unknown whether the last {count} entries were committed"
        ),
    }
}

fn print_next_steps(plan: &RecoveryPlan, forced: &ForcedCluster, arguments: &RecoverArguments) {
    let (id, member) = (hex_id(forced.cluster_id), named_id(&plan.name, forced.member.0));
    line(&format!("the previous data is in {}", forced.old_directory.display()));
    if plan.joining_members.is_empty() {
        line(&format!("cluster {id} has one member, {member}; start it, then add more members"));
        return;
    }
    line(&format!("cluster {id} has one member, {member}; start it"));
    let names: Vec<_> = plan.joining_members.iter().map(|(name, _)| name.as_str()).collect();
    line(&format!(
        "then start {}, each with an empty data directory and these variables:",
        names.join(", ")
    ));
    line("");
    line("ETCD_INITIAL_CLUSTER_STATE=\"existing\"");
    line(&format!("ETCD_INITIAL_CLUSTER=\"{}\"", arguments.members.as_deref().unwrap_or_default()));
}
