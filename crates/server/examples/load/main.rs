//! Loads that once deposed leaders or took all memory, against any cluster with etcd's API.
//! `scripts/load.sh` starts a cluster and runs one of them; `docs/reliability.md` has the results.
//!
//! Each load prints one line: what clients experienced, the terms of all members before and
//! after, and the memory of the given processes.

mod cluster;
mod connections;
mod large;
mod requests;

use std::process::ExitCode;

use cluster::{LoadError, LoadedCluster};

const USAGE: &str = "usage: load NAME ENDPOINT,ENDPOINT… [PID,PID…]

  counts        2 clients: transactions of 128 counts of 200,000 keys
  deletes       deletions of 800,000 keys with one request
  streams       8 connections open thousands of streams without a request, on each member
  compactions   40 compactions beside ranges of 20,000 keys
  keepalives    100,000 keep-alives on one stream
  watches       100,000 watches of one client
  unread        90 ranges of 200 MiB that are not read
  overwrites    2,685 puts of 1 MiB to 151 keys, compacted on the way
  urls          a member with 40,000 URLs
  timeouts      malformed and zero grpc-timeout";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, endpoints, pids) = match arguments.as_slice() {
        [name, endpoints] => (name, endpoints, ""),
        [name, endpoints, pids] => (name, endpoints, pids.as_str()),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(name, endpoints, pids).await {
        Ok(line) => {
            println!("{name}: {line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(name: &str, endpoints: &str, pids: &str) -> Result<String, LoadError> {
    let cluster = LoadedCluster::connect(endpoints, pids).await?;
    let before = cluster.terms().await?;
    let line = match name {
        "counts" => requests::counts(&cluster).await,
        "deletes" => requests::deletes(&cluster).await,
        "compactions" => requests::compactions(&cluster).await,
        "overwrites" => requests::overwrites(&cluster).await,
        "streams" => connections::streams(&cluster).await,
        "unread" => connections::unread(&cluster).await,
        "timeouts" => connections::timeouts(&cluster).await,
        "keepalives" => large::keep_alives(&cluster).await,
        "watches" => large::watches(&cluster).await,
        "urls" => large::urls(&cluster).await,
        _ => Err(USAGE.into()),
    }?;
    let after = cluster.terms().await?;
    Ok(format!("{line}; terms {before:?} to {after:?}"))
}
