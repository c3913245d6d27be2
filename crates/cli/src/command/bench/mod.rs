//! `quorate bench`: load on any server that speaks etcd's API, and what came of it.
//!
//! Each client waits for its answer before it asks again, so what is measured is what that
//! many clients see; it is not a rate that somebody prescribes.

mod client;
mod report;
mod watch;

pub(crate) use self::report::millis;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tonic::transport::Channel;

use self::client::{Outcome, Work};
use self::report::Report;
use crate::arguments::{BenchArguments, Operation, WriteOut};
use crate::client::{endpoints, open, open_to_ask};
use crate::failure::Failure;
use crate::gaps::Gaps;
use crate::{print, processor};

pub(crate) async fn run(arguments: BenchArguments) -> Result<(), Failure> {
    let channels = connect(&arguments).await?;
    let arguments = Arc::new(arguments);
    if arguments.operation == Operation::Get {
        client::fill(&channels, &arguments).await?;
    }
    let processor_before = processor::taken(&arguments.pids)?;
    let began = Instant::now();
    let work = Arc::new(Work {
        arguments: arguments.clone(),
        began,
        until: began + Duration::from_secs(arguments.seconds),
        gaps: Gaps::new(began),
    });
    let outcome = match arguments.operation {
        Operation::Watch => watch::run(&channels, &work).await?,
        _ => all_clients(&channels, &work).await,
    };
    let ended = Instant::now();
    let report = Report {
        operation: arguments.operation,
        clients: arguments.clients,
        connections: channels.len(),
        took: ended - began,
        gap: work.gaps.longest(ended),
        processor: processor::taken(&arguments.pids)?.saturating_sub(processor_before),
        measured: !arguments.pids.is_empty(),
        outcome,
    };
    match arguments.client.write_out {
        WriteOut::Table => print::out(&report.text()),
        WriteOut::Json => print::json(&report.as_json()),
    }
    if report.outcome.times.total() == 0 {
        return Err(Failure::failed(format!(
            "nothing succeeded: {}",
            report.outcome.first_error()
        )));
    }
    Ok(())
}

/// Connections over the endpoints that answer, in turn.
async fn connect(arguments: &BenchArguments) -> Result<Vec<Channel>, Failure> {
    let addresses = endpoints(&arguments.client.endpoints, |name| std::env::var(name).ok());
    let client = &arguments.client;
    let mut live = Vec::new();
    let mut last = Failure::usage("no endpoint is given");
    for address in addresses {
        match open_to_ask(&address, client).await {
            Ok(connection) => live.push((address, connection.channel)),
            Err(failure) => {
                eprintln!("left out: {failure}");
                last = failure;
            }
        }
    }
    if live.is_empty() {
        return Err(last);
    }
    let wanted = (arguments.connections.min(arguments.clients) as usize).max(live.len());
    let mut channels: Vec<Channel> = live.iter().map(|(_, channel)| channel.clone()).collect();
    while channels.len() < wanted {
        let (address, _) = &live[channels.len() % live.len()];
        channels.push(open(address, client.dial_timeout, client.command_timeout).await?.channel);
    }
    Ok(channels)
}

async fn all_clients(channels: &[Channel], work: &Arc<Work>) -> Outcome {
    let mut clients = JoinSet::new();
    for (number, channel) in (0..work.arguments.clients).zip(channels.iter().cycle()) {
        clients.spawn(client::run(number, channel.clone(), work.clone()));
    }
    let mut outcome = Outcome::new();
    while let Some(one) = clients.join_next().await {
        outcome.add(&one.unwrap_or_else(|_| Outcome::new()));
    }
    outcome
}
