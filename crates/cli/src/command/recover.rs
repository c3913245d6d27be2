//! `quorate recover`: a new cluster of one stopped member, when the others are lost or all
//! are stopped.
//!
//! Asked without a confirmation it only tells what would be given up, and prints the
//! confirmation for exactly that.

use quorate_server::Url;
use quorate_server::config::{self, Config, Invocation};
use quorate_server::recover::{ForcedCluster, RecoverError, RecoveryPlan, plan_recovery, recover};
use sha2::{Digest, Sha256};

use crate::arguments::RecoverArguments;
use crate::failure::Failure;
use crate::print::line;
use crate::who::hex;

pub(crate) fn run(asked: &RecoverArguments) -> Result<(), Failure> {
    let config = wanted(asked)?;
    let failed = |why: RecoverError| {
        Failure::because(&format!("cannot recover {}", asked.data_dir.display()), &why)
    };
    let plan = plan_recovery(&config).map_err(failed)?;
    if plan.members.len() == 1 {
        alone(&plan);
        return Ok(());
    }
    let wanted = confirmation(&plan);
    match &asked.confirm {
        Some(given) if *given == wanted => {}
        Some(given) => {
            return Err(Failure::failed(format!(
                "'{given}' does not confirm what would happen now; ask again without --confirm"
            )));
        }
        None => {
            consequences(&plan).iter().for_each(|text| line(text));
            line(&format!("to do it: {} --confirm {wanted}", command(asked)));
            return Ok(());
        }
    }
    match recover(&config).map_err(failed)? {
        None => alone(&plan),
        Some(forced) => done(&plan, &forced, asked),
    }
    Ok(())
}

fn alone(plan: &RecoveryPlan) {
    line(&format!("{} is the only member of its cluster; nothing was changed", plan.name));
    line("start it, then 'quorate member add' or 'quorate member set' give it company");
}

/// The members go by the name that a server's flag has: they are read in the same way.
fn wanted(asked: &RecoverArguments) -> Result<Config, Failure> {
    let mut config = Config::default();
    if let Some(members) = &asked.members {
        let flags = ["--initial-cluster".to_string(), members.clone()];
        let odd = |why: String| {
            let why = why.replace("--initial-cluster", "--members");
            Failure::usage(format!("{why}; write a=http://10.0.0.1:2380,b=http://10.0.0.2:2380"))
        };
        match config::parse(flags, []).map_err(|why| odd(why.to_string()))? {
            Invocation::Run(read) => config = *read,
            Invocation::Help | Invocation::Version => {
                return Err(odd("--members names nobody".to_string()));
            }
        }
        if config.initial_cluster.is_empty() {
            return Err(odd("--members names nobody".to_string()));
        }
    }
    Ok(Config { data_dir: asked.data_dir.clone(), wal_dir: asked.wal_dir.clone(), ..config })
}

/// The same words again.
fn command(asked: &RecoverArguments) -> String {
    let mut text = format!("quorate recover --data-dir {}", asked.data_dir.display());
    if let Some(path) = &asked.wal_dir {
        text += &format!(" --wal-dir {}", path.display());
    }
    if let Some(members) = &asked.members {
        text += &format!(" --members {members}");
    }
    text
}

/// Fits this state and this wish only: what was looked at is what is done.
fn confirmation(plan: &RecoveryPlan) -> String {
    let RecoveryPlan { cluster_id, committed, last, .. } = plan;
    let mut text = format!("{}-{committed}-{last}", hex(*cluster_id));
    let moves = plan.new_peer_urls.as_ref().map(|urls| (&plan.name, urls));
    let wished = plan.joining_members.iter().map(|(name, urls)| (name, urls)).chain(moves);
    let mut wished: Vec<_> = wished.map(|(name, urls)| pair(name, urls)).collect();
    if !wished.is_empty() {
        wished.sort();
        let sum = Sha256::digest(wished.join(" "));
        let sum: String = sum.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        text += &format!("-{sum}");
    }
    text
}

fn pair(name: &str, urls: &[Url]) -> String {
    let one = |url: &Url| format!("{name}={url}");
    urls.iter().map(one).collect::<Vec<_>>().join(",")
}

fn consequences(plan: &RecoveryPlan) -> Vec<String> {
    let others = plan.members.iter().filter(|(id, _)| *id != plan.member);
    let others: Vec<_> = others.map(|(id, name)| format!("{name} ({})", hex(id.0))).collect();
    let unsure = plan.last.saturating_sub(plan.committed);
    let mut lines = vec![
        format!(
            "{} ({}) of cluster {} holds revision {} (entry {})",
            plan.name,
            hex(plan.member.0),
            hex(plan.cluster_id),
            plan.revision,
            plan.last
        ),
        format!("these would be members no more: {}", listed(&others)),
        format!("this would be kept: {}", kept(unsure)),
        "this would be lost: whatever was acknowledged without this member; compare the \
         others' disks first, and take the one with the highest entry"
            .to_string(),
        "old members are refused by the new cluster: it has another id".to_string(),
    ];
    if let Some(urls) = &plan.new_peer_urls {
        lines.push(format!("its peers would find it at {}", pair(&plan.name, urls)));
    }
    let joining_members: Vec<_> =
        plan.joining_members.iter().map(|(name, urls)| pair(name, urls)).collect();
    if !joining_members.is_empty() {
        lines.push(format!(
            "these would join it with empty directories, and vote once they have caught up: {}",
            joining_members.join(", ")
        ));
    }
    lines
}

fn listed(others: &[String]) -> String {
    if others.is_empty() { "nobody".to_string() } else { others.join(", ") }
}

fn kept(unsure: u64) -> String {
    match unsure {
        0 => "everything that this disk holds, all of it committed".to_string(),
        1 => "everything that this disk holds, the last entry without knowing that it was \
              committed"
            .to_string(),
        some => format!(
            "everything that this disk holds, the last {some} entries without knowing that they \
             were committed"
        ),
    }
}

fn done(plan: &RecoveryPlan, forced: &ForcedCluster, asked: &RecoverArguments) {
    let (id, member) = (hex(forced.cluster_id), hex(forced.member.0));
    line(&format!("what was there before is in {}", forced.old_directory.display()));
    if plan.joining_members.is_empty() {
        line(&format!("cluster {id} has one member, {member}; start it, then add others"));
        return;
    }
    line(&format!("cluster {id} has one member, {member}; start it"));
    let names: Vec<_> = plan.joining_members.iter().map(|(name, _)| name.as_str()).collect();
    line(&format!("then start {}, each with an empty directory and", names.join(", ")));
    line("");
    line("ETCD_INITIAL_CLUSTER_STATE=\"existing\"");
    line(&format!("ETCD_INITIAL_CLUSTER=\"{}\"", asked.members.as_deref().unwrap_or_default()));
}
