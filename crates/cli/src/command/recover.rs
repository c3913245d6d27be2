//! `quorate recover`: a new cluster of one stopped member, when the others are lost.
//!
//! Asked without a confirmation it only tells what would be given up, and prints the
//! confirmation for exactly that.

use quorate_server::config::Config;
use quorate_server::recover::{Examined, examine, force_new_cluster};

use crate::arguments::RecoverArguments;
use crate::failure::Failure;
use crate::print::{counted, line};
use crate::who::hex;

pub(crate) fn run(asked: &RecoverArguments) -> Result<(), Failure> {
    let config = Config { data_dir: asked.data_dir.clone(), ..Config::default() };
    let failed = |why: quorate_server::recover::RecoverError| {
        Failure::because(&format!("cannot recover {}", asked.data_dir.display()), &why)
    };
    let examined = examine(&config).map_err(failed)?;
    let wanted = confirmation(&examined);
    match &asked.confirm {
        Some(given) if *given == wanted => {}
        Some(given) => {
            return Err(Failure::failed(format!(
                "'{given}' does not confirm what would happen now; ask again without --confirm"
            )));
        }
        None => {
            consequences(&examined).iter().for_each(|text| line(text));
            line(&format!(
                "to do it: quorate recover --data-dir {} --confirm {wanted}",
                asked.data_dir.display()
            ));
            return Ok(());
        }
    }
    match force_new_cluster(&config).map_err(failed)? {
        None => line("it is the only member already; nothing was changed"),
        Some(forced) => {
            let (id, member) = (hex(forced.cluster_id), hex(forced.member.0));
            line(&format!("cluster {id} has one member, {member}; start it, then add others"));
            line(&format!("what was there before is in {}", forced.before.display()));
        }
    }
    Ok(())
}

/// Fits this state only: what was looked at is what is done.
fn confirmation(examined: &Examined) -> String {
    format!("{}-{}-{}", hex(examined.cluster_id), examined.committed, examined.last)
}

fn consequences(examined: &Examined) -> Vec<String> {
    let others = examined.members.iter().filter(|(id, _)| *id != examined.member);
    let others: Vec<_> = others.map(|(id, name)| format!("{name} ({})", hex(id.0))).collect();
    let unsure = examined.last.saturating_sub(examined.committed);
    vec![
        format!(
            "member {} of cluster {} holds revision {} (entry {})",
            hex(examined.member.0),
            hex(examined.cluster_id),
            examined.revision,
            examined.last
        ),
        format!("these would be members no more: {}", named(&others)),
        format!("this would be kept: {}", kept(unsure)),
        "this would be lost: whatever was acknowledged without this member; compare the \
         others' disks first, and take the one with the highest entry"
            .to_string(),
        "old members are refused by the new cluster: it has another id".to_string(),
    ]
}

fn named(others: &[String]) -> String {
    if others.is_empty() { "nobody".to_string() } else { others.join(", ") }
}

fn kept(unsure: u64) -> String {
    match unsure {
        0 => "everything that this disk holds, all of it committed".to_string(),
        some => format!(
            "everything that this disk holds, the last {} without knowing that they were \
             committed",
            counted(some, "entry", "entries")
        ),
    }
}
