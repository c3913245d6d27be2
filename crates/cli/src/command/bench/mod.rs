//! `quorate bench`: measures any server with etcd's API under load.
//!
//! A closed loop: each client waits for a reply before its next request, so the result is what
//! that number of clients experiences, not the behaviour at a fixed request rate.

mod client;
mod report;
mod watch;

pub(crate) use self::report::millis;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use self::client::{BenchResult, BenchRun};
use self::report::BenchReport;
use crate::arguments::{BenchArguments, BenchOperation, WriteOut};
use crate::client::{ClientChannel, connect_to, endpoints, open_as};
use crate::cpu_time::cpu_time;
use crate::error::CliError;
use crate::gaps::Gaps;
use crate::print;

pub(crate) async fn run(arguments: BenchArguments) -> Result<(), CliError> {
    let channels = connect(&arguments).await?;
    let arguments = Arc::new(arguments);
    let reads = matches!(arguments.operation, BenchOperation::Get | BenchOperation::Mixed);
    if reads && !arguments.filled {
        client::fill(&channels, &arguments).await?;
    }
    let cpu_before = cpu_time(&arguments.pids)?;
    let started = Instant::now();
    let run = Arc::new(BenchRun {
        arguments: arguments.clone(),
        started,
        until: started + Duration::from_secs(arguments.seconds),
        gaps: Gaps::new(started),
    });
    let result = match arguments.operation {
        BenchOperation::Watch => watch::run(&channels, &run).await?,
        _ => all_clients(&channels, &run).await,
    };
    let ended = Instant::now();
    let report = BenchReport {
        operation: arguments.operation,
        clients: arguments.clients,
        connections: channels.len(),
        took: ended - started,
        gap: run.gaps.longest(ended),
        server_cpu: if arguments.pids.is_empty() {
            None
        } else {
            Some(cpu_time(&arguments.pids)?.saturating_sub(cpu_before))
        },
        result,
    };
    match arguments.client.write_out {
        WriteOut::Table => print::out(&report.text()),
        WriteOut::Json => print::json(&report.as_json()),
    }
    if report.result.times.total() == 0 {
        let error = report.result.first_error();
        return Err(CliError::failed(format!("no request succeeded: {error}")));
    }
    Ok(())
}

/// Connections spread evenly over the endpoints that answer.
async fn connect(arguments: &BenchArguments) -> Result<Vec<ClientChannel>, CliError> {
    let addresses = endpoints(&arguments.client.endpoints, |name| std::env::var(name).ok());
    let client = &arguments.client;
    let mut live = Vec::new();
    let mut last_error = CliError::usage("no endpoint is given");
    for address in addresses {
        match connect_to(&address, client).await {
            Ok((connection, _)) => live.push((address, connection.channel)),
            Err(error) => {
                print::note(client.write_out, &format!("skipped endpoint: {error}"));
                last_error = error;
            }
        }
    }
    if live.is_empty() {
        return Err(last_error);
    }
    let count = (arguments.connections.min(arguments.clients) as usize).max(live.len());
    let mut channels: Vec<ClientChannel> =
        live.iter().map(|(_, channel)| channel.clone()).collect();
    while channels.len() < count {
        let (address, _) = &live[channels.len() % live.len()];
        channels.push(open_as(address, client).await?.channel);
    }
    Ok(channels)
}

async fn all_clients(channels: &[ClientChannel], run: &Arc<BenchRun>) -> BenchResult {
    let mut clients = JoinSet::new();
    for (number, channel) in (0..run.arguments.clients).zip(channels.iter().cycle()) {
        clients.spawn(client::run(number, channel.clone(), run.clone()));
    }
    let mut total = BenchResult::new();
    while let Some(result) = clients.join_next().await {
        total.add(&result.unwrap_or_else(|_| BenchResult::new()));
    }
    total
}
