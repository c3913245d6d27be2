//! `quorate downgrade`: prepares a cluster for older programs, and ends that.

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::downgrade_request::DowngradeAction;
use serde_json::json;

use crate::arguments::{ClientArguments, DowngradeCommand, WriteOut};
use crate::client::{connect, leader_of};
use crate::error::CliError;
use crate::print;

pub(crate) async fn run(command: DowngradeCommand) -> Result<(), CliError> {
    match command {
        DowngradeCommand::Enable { version, client } => {
            let reached = request(DowngradeAction::Enable, version, &client).await?;
            let next = "replace the programs one at a time, each when `quorate status` shows this \
                        storage version for its member";
            answer(&client, &reached, &format!("the cluster version is {reached}; {next}"));
        }
        DowngradeCommand::Cancel { client } => {
            let reached = request(DowngradeAction::Cancel, 0, &client).await?;
            let next = "it rises when all members run programs that support more";
            answer(&client, &reached, &format!("the cluster version is {reached}; {next}"));
        }
    }
    Ok(())
}

/// Only the leader accepts it.
async fn request(
    action: DowngradeAction,
    version: u32,
    client: &ClientArguments,
) -> Result<String, CliError> {
    let leader = leader_of(&connect(client).await?).await;
    let request = etcd::DowngradeRequest { action: action.into(), version: version.to_string() };
    let reply = leader.maintenance().downgrade(leader.request(request)).await;
    let refused =
        |status| CliError::from_status("cannot change the version", &leader.endpoint, &status);
    Ok(reply.map_err(refused)?.into_inner().version)
}

fn answer(client: &ClientArguments, version: &str, text: &str) {
    match client.write_out {
        WriteOut::Table => print::line(text),
        WriteOut::Json => print::json(&json!({ "clusterVersion": version.parse::<u32>().ok() })),
    }
}
