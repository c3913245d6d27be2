//! `quorate demo`: runs three members as processes of this program, and replaces one of them
//! with a fourth while clients write.
//!
//! Owns the cleanup: no process and no temporary directory is left behind, however it ends.

mod certificates;
mod cluster;
mod directory;
mod load;
mod replacement;
mod view;

use std::sync::Arc;
use std::time::Duration;

use self::cluster::DemoCluster;
use self::directory::DemoDirectory;
use self::load::{DemoLoad, LoadSummary};
use self::view::LiveView;
use crate::arguments::DemoArguments;
use crate::command::bench::millis;
use crate::error::CliError;
use crate::print::{counted, line, pipe_closed};

pub(crate) async fn run(arguments: DemoArguments) -> Result<(), CliError> {
    // Before anything is started: from here on a signal stops the demo with cleanup.
    let interrupted = interrupted()?;
    let directory = DemoDirectory::create(arguments.data_dir.as_deref())?;
    let result = run_in(&directory, &arguments, interrupted).await;
    match directory.release()? {
        Some(path) => line(&format!("the members' data is in {}", path.display())),
        None => line("the members' data is removed"),
    }
    result
}

/// Runs the demo until it ends or is interrupted, and stops the members.
async fn run_in(
    directory: &DemoDirectory,
    arguments: &DemoArguments,
    interrupted: impl Future<Output = ()>,
) -> Result<(), CliError> {
    let mut cluster = DemoCluster::new(directory, arguments)?;
    let result = tokio::select! {
        result = replace_under_load(&mut cluster, arguments) => result,
        () = interrupted => {
            line("interrupted");
            Ok(())
        }
    };
    match cluster.stop_all().await {
        0 => line("all members are stopped"),
        count => {
            line(&format!("{} not be stopped", counted(count, "member could", "members could")));
        }
    }
    result
}

/// Completes when the demo should stop: on a signal, or when the output pipe is closed.
fn interrupted() -> Result<impl Future<Output = ()>, CliError> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |error: std::io::Error| CliError::with_cause("cannot listen for signals", &error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hang_up = signal(SignalKind::hangup()).map_err(failed)?;
    let closed = pipe_closed();
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hang_up.recv() => {}
            () = closed.notified() => {}
        }
    })
}

async fn replace_under_load(
    cluster: &mut DemoCluster,
    arguments: &DemoArguments,
) -> Result<(), CliError> {
    for number in 1..=3 {
        cluster.start_initial(number)?;
    }
    line(&format!("starting three members in {}", cluster.directory().display()));
    cluster.wait_ready(&[1, 2, 3]).await?;
    let (endpoints, tls) = (cluster.endpoints(&[1, 2, 3]), cluster.client_tls());
    let load = Arc::new(DemoLoad::start(endpoints, tls, arguments.clients));
    let view = LiveView::start(load.clone(), cluster.addresses(&[1, 2, 3, 4]));
    let quarter = Duration::from_millis(arguments.seconds * 250);
    let clients = counted(u64::from(arguments.clients), "client writes", "clients write");
    view.print(&clients);
    tokio::time::sleep(quarter).await;
    let old = replacement::choose(cluster, arguments.leader).await?;
    // As with real clients: they move to other members before this one is removed.
    let staying: Vec<usize> = (1..=3).filter(|number| *number != old).collect();
    load.switch_to(cluster.endpoints(&staying)).await;
    view.print(&format!("clients switched to m{} and m{}", staying[0], staying[1]));
    replacement::run(cluster, &view, old).await?;
    let staying = [staying[0], staying[1], 4];
    load.switch_to(cluster.endpoints(&staying)).await;
    tokio::time::sleep(quarter).await;
    cluster.stop(old).await;
    view.print(&format!("m{old} is stopped; the others continue"));
    tokio::time::sleep(quarter * 2).await;
    view.stop();
    let summary = load.stop().await?;
    print_summary(&summary);
    if !arguments.once {
        print_next_steps(cluster, &staying);
        std::future::pending::<()>().await;
    }
    if summary.lost > 0 {
        return Err(CliError::failed(format!("{} acknowledged writes are lost", summary.lost)));
    }
    Ok(())
}

fn print_summary(summary: &LoadSummary) {
    line("");
    line(&format!(
        "{} writes, p50 {}, p99 {}",
        summary.times.total(),
        millis(summary.times.per_mille(500)),
        millis(summary.times.per_mille(990))
    ));
    line(&format!("longest write gap: {}", millis(summary.gap)));
    line(&format!("failed requests: {}", summary.failed()));
    for (error, count) in &summary.errors {
        line(&format!("  {count} x {error}"));
    }
    line(&format!(
        "acknowledged writes read back: {} of {}",
        summary.checked - summary.lost,
        summary.checked
    ));
}

fn print_next_steps(cluster: &DemoCluster, members: &[usize]) {
    let endpoints = cluster.endpoints(members).join(",");
    line("");
    line("the cluster runs until you press Ctrl-C; try:");
    line(&format!("  export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={endpoints}"));
    if let Some([cacert, cert, key]) = cluster.client_files() {
        let [cacert, cert, key] = [cacert.display(), cert.display(), key.display()];
        line(&format!("  export ETCDCTL_CACERT={cacert} ETCDCTL_CERT={cert} ETCDCTL_KEY={key}"));
    }
    line("  etcdctl put hello world");
    line("  etcdctl get hello");
    line("  etcdctl member list -w table");
    line("  etcdctl endpoint status -w table");
    // As it was started: it may not be in $PATH.
    let program = std::env::args().next().unwrap_or_else(|| "quorate".to_string());
    line(&format!("  {program} status"));
    line(&format!("  {program} member list"));
}
