//! The procedure of the demo on one cluster: start, write, replace, write.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cluster::DemoCluster;
use super::column::Column;
use super::load::{self, DemoLoad, LoadSummary};
use super::observer::ColumnObserver;
use super::{replacement, screen};
use crate::arguments::DemoArguments;
use crate::error::CliError;
use crate::print::counted;

/// For the screen, and for lines.
const SCREEN_INTERVAL: Duration = Duration::from_millis(250);
const LINE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct ProcedureResult {
    pub(super) load: LoadSummary,
    /// From the first request of the operator until the old member is no longer needed.
    pub(super) replacement_took: Duration,
    pub(super) operator_steps: Vec<String>,
    /// The numbers of the members at the end.
    pub(super) members: [usize; 3],
}

/// What is done, in words, and how it ends.
pub(super) fn screen_texts(arguments: &DemoArguments) -> [String; 2] {
    let replaced = if arguments.follower { "a follower" } else { "the leader" };
    let throttle = throttle_text(arguments.clients);
    [
        format!("replace {replaced} while clients write"),
        format!("{throttle}. Ctrl-C ends the demo."),
    ]
}

/// The rate of writes says nothing about the servers, and the demo says so.
pub(super) fn throttle_text(clients: u32) -> String {
    let clients = counted(u64::from(clients), "client", "clients");
    let pause = load::WRITE_INTERVAL.as_millis();
    format!("Throttled: {clients}, each pauses {pause} ms after a write")
}

pub(super) async fn run(
    cluster: &mut DemoCluster,
    column: &Arc<Column>,
    arguments: &DemoArguments,
) -> Result<ProcedureResult, CliError> {
    for number in 1..=3 {
        cluster.start_initial(number)?;
    }
    column.log(&format!("starting three members in {}", cluster.directory().display()));
    cluster.wait_ready(&[1, 2, 3]).await?;
    let (endpoints, tls) = (cluster.endpoints(&[1, 2, 3]), cluster.client_tls());
    let load = Arc::new(DemoLoad::start(endpoints, tls, arguments.clients));
    let interval = if screen::is_available() { SCREEN_INTERVAL } else { LINE_INTERVAL };
    let addresses = cluster.addresses(&[1, 2, 3, 4]);
    let observer = ColumnObserver::start(column.clone(), load.clone(), addresses, interval);
    let clients = counted(u64::from(arguments.clients), "client writes", "clients write");
    column.log(&clients);
    let quarter = Duration::from_millis(arguments.seconds * 250);
    tokio::time::sleep(quarter).await;
    let old = replacement::choose(cluster, !arguments.follower).await?;
    // As with real clients: they move to other members before this one is removed.
    let staying: Vec<usize> = (1..=3).filter(|number| *number != old).collect();
    load.switch_to(cluster.endpoints(&staying)).await;
    column.log(&format!("clients switched to m{} and m{}", staying[0], staying[1]));
    let started = Instant::now();
    replacement::run(cluster, column, old, !arguments.follower).await?;
    let replacement_took = started.elapsed();
    let members = [staying[0], staying[1], 4];
    load.switch_to(cluster.endpoints(&members)).await;
    tokio::time::sleep(quarter).await;
    cluster.stop(old).await;
    column.log(&format!("m{old} is stopped; the others continue"));
    tokio::time::sleep(quarter * 2).await;
    drop(observer);
    let load = load.stop().await?;
    let operator_steps = column.state().operator_steps;
    column.update(|state| state.finished = true);
    Ok(ProcedureResult { load, replacement_took, operator_steps, members })
}
