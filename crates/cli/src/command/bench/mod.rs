//! `quorate bench`: measures any server with etcd's API under load.
//!
//! A closed loop: each client waits for a reply before its next request, so the result is what
//! that number of clients experiences, not the behaviour at a fixed request rate.

mod client;
mod connection;
mod load;
mod reply;
mod report;
mod watch;

pub(crate) use self::report::millis;

use std::sync::Arc;
use std::time::{Duration, Instant};

use self::client::BenchRun;
use self::load::PreparedLoad;
use self::report::BenchReport;
use crate::arguments::{BenchArguments, BenchOperation, WriteOut};
use crate::client::{Connection, connect_to, endpoints};
use crate::cpu_time::cpu_time;
use crate::error::CliError;
use crate::gaps::Gaps;
use crate::print;

pub(crate) async fn run(arguments: BenchArguments) -> Result<(), CliError> {
    let connections = connect(&arguments).await?;
    let arguments = Arc::new(arguments);
    let reads = matches!(arguments.operation, BenchOperation::Get | BenchOperation::Mixed);
    if reads && !arguments.filled {
        let channels: Vec<_> = connections.iter().map(|one| one.channel.clone()).collect();
        client::fill(&channels, &arguments).await?;
    }
    let load = PreparedLoad::open(&connections, &arguments).await?;
    let count = load.connections();
    let cpu_before = cpu_time(&arguments.pids)?;
    let started = Instant::now();
    let run = Arc::new(BenchRun {
        arguments: arguments.clone(),
        started,
        until: started + Duration::from_secs(arguments.seconds),
        gaps: Gaps::new(started),
    });
    let result = match arguments.operation {
        BenchOperation::Watch => watch::run(load, &connections, &run).await?,
        _ => {
            // Servers that are measured have no other connections.
            drop(connections);
            load.run(&run).await?
        }
    };
    let ended = Instant::now();
    let report = BenchReport {
        operation: arguments.operation,
        clients: arguments.clients,
        connections: count,
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

/// A connection to each endpoint that answers.
async fn connect(arguments: &BenchArguments) -> Result<Vec<Connection>, CliError> {
    let addresses = endpoints(&arguments.client.endpoints, |name| std::env::var(name).ok());
    let client = &arguments.client;
    let mut live = Vec::new();
    let mut last_error = CliError::usage("no endpoint is given");
    for address in addresses {
        match connect_to(&address, client).await {
            Ok((connection, _)) => live.push(connection),
            Err(error) => {
                print::note(client.write_out, &format!("skipped endpoint: {error}"));
                last_error = error;
            }
        }
    }
    if live.is_empty() { Err(last_error) } else { Ok(live) }
}
