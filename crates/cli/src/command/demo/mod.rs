//! `quorate demo`: three members as processes of this very program, one of them replaced by
//! a fresh fourth while clients write.
//!
//! Owns the story and its end: whatever happens, no process stays behind, and no directory
//! that was not asked for.

mod directory;
mod load;
mod members;
mod replacement;
mod view;

use std::sync::Arc;
use std::time::Duration;

use self::directory::Directory;
use self::load::{Load, Summary};
use self::members::Members;
use self::view::View;
use crate::arguments::DemoArguments;
use crate::command::bench::millis;
use crate::failure::Failure;
use crate::print::{counted, line, reader_gone};

pub(crate) async fn run(arguments: DemoArguments) -> Result<(), Failure> {
    // Before anything is started: from here on an interruption ends the story, not us.
    let interrupted = interrupted()?;
    let directory = Directory::take(arguments.data_dir.as_deref())?;
    let told = show(&directory, &arguments, interrupted).await;
    match directory.release()? {
        Some(kept) => line(&format!("the members' data is in {}", kept.display())),
        None => line("the members' data is removed"),
    }
    told
}

/// Tells the story, or as much of it as somebody wants to hear, and stops the members.
async fn show(
    directory: &Directory,
    arguments: &DemoArguments,
    interrupted: impl Future<Output = ()>,
) -> Result<(), Failure> {
    let mut members = Members::new(directory, arguments.program.clone())?;
    let told = tokio::select! {
        told = story(&mut members, arguments) => told,
        () = interrupted => {
            line("interrupted");
            Ok(())
        }
    };
    match members.stop_all().await {
        0 => line("all members are stopped"),
        some => line(&format!("{} not be stopped", counted(some, "member could", "members could"))),
    }
    told
}

/// Ready when somebody wants this to end.
fn interrupted() -> Result<impl Future<Output = ()>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |why: std::io::Error| Failure::because("cannot listen for signals", &why);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(failed)?;
    let gone = reader_gone();
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
            () = gone.notified() => {}
        }
    })
}

async fn story(members: &mut Members, arguments: &DemoArguments) -> Result<(), Failure> {
    for number in 1..=3 {
        members.start_first(number)?;
    }
    line(&format!("three members are starting in {}", members.directory().display()));
    members.wait_ready(&[1, 2, 3]).await?;
    let load = Arc::new(Load::start(members.endpoints(&[1, 2, 3]), arguments.clients));
    let view = View::start(load.clone(), members.addresses(&[1, 2, 3, 4]));
    let quarter = Duration::from_millis(arguments.seconds * 250);
    view.say(&format!("{} write", counted(u64::from(arguments.clients), "client", "clients")));
    tokio::time::sleep(quarter).await;
    let old = replacement::choose(members, arguments.leader).await?;
    // What one would do with real clients: they leave before the member does.
    let stay: Vec<usize> = (1..=3).filter(|number| *number != old).collect();
    load.move_to(members.endpoints(&stay)).await;
    view.say(&format!("clients use m{} and m{} from now on", stay[0], stay[1]));
    replacement::run(members, &view, old).await?;
    let stay = [stay[0], stay[1], 4];
    load.move_to(members.endpoints(&stay)).await;
    tokio::time::sleep(quarter).await;
    members.stop(old).await;
    view.say(&format!("m{old} is stopped; the others go on"));
    tokio::time::sleep(quarter * 2).await;
    view.stop();
    let summary = load.stop().await?;
    tell(&summary);
    if !arguments.once {
        invite(members, &stay);
        std::future::pending::<()>().await;
    }
    if summary.lost > 0 {
        return Err(Failure::failed(format!("{} acknowledged writes are gone", summary.lost)));
    }
    Ok(())
}

fn tell(summary: &Summary) {
    line("");
    line(&format!(
        "{} writes, p50 {}, p99 {}",
        summary.times.total(),
        millis(summary.times.per_mille(500)),
        millis(summary.times.per_mille(990))
    ));
    line(&format!("longest write gap: {}", millis(summary.gap)));
    line(&format!("failed requests: {}", summary.failed()));
    for (why, count) in &summary.errors {
        line(&format!("  {count} x {why}"));
    }
    line(&format!(
        "acknowledged writes found again: {} of {}",
        summary.checked - summary.lost,
        summary.checked
    ));
}

fn invite(members: &Members, stay: &[usize]) {
    let endpoints = members.endpoints(stay).join(",");
    line("");
    line("the cluster stays up until you press Ctrl-C; try");
    line(&format!("  export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={endpoints}"));
    line("  etcdctl put hello world");
    line("  etcdctl get hello");
    line("  etcdctl member list -w table");
    line("  etcdctl endpoint status -w table");
    // By the name that it was started with: it may not be where shells look.
    let program = std::env::args().next().unwrap_or_else(|| "quorate".to_string());
    line(&format!("  {program} status"));
    line(&format!("  {program} member list"));
}
