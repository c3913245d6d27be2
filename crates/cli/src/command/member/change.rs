//! `quorate member promote` and `remove`: etcd's calls, which return when the change is done.

use std::time::Duration;

use quorate_proto::etcdserverpb as etcd;
use tonic::Status;

use super::list;
use crate::arguments::{ClientArguments, WriteOut};
use crate::client::{Connection, avoid_member, connect};
use crate::error::CliError;
use crate::goal_wait::progress_lines;
use crate::member_lookup::{find, label};
use crate::membership_text::MemberNames;
use crate::print;

/// A change includes settling and a leadership transfer, and takes longer than a read.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn promote(client: &ClientArguments, argument: &str) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let members = connection.named_members().await?;
    let member = find(&members, argument)?;
    let request =
        connection.request_within(etcd::MemberPromoteRequest { id: member.id }, CHANGE_TIMEOUT);
    let mut cluster = connection.cluster();
    let reply = with_progress(&connection, client.write_out, cluster.member_promote(request));
    reply.await?.map_err(|status| refused("promote", member, &connection, &status))?;
    print::note(client.write_out, &format!("{} is a voter now", label(member)));
    list::print_members(&connection, client.write_out).await
}

pub(crate) async fn remove(client: &ClientArguments, argument: &str) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let members = connection.named_members().await?;
    let member = find(&members, argument)?;
    let connection = avoid_member(connection, member.id, &members).await;
    let request =
        connection.request_within(etcd::MemberRemoveRequest { id: member.id }, CHANGE_TIMEOUT);
    let mut cluster = connection.cluster();
    let reply = with_progress(&connection, client.write_out, cluster.member_remove(request));
    reply.await?.map_err(|status| refused("remove", member, &connection, &status))?;
    let text = format!("{} is removed; its id will not be reused", label(member));
    print::note(client.write_out, &text);
    list::print_members(&connection, client.write_out).await
}

fn refused(
    verb: &str,
    member: &etcd::Member,
    connection: &Connection,
    status: &Status,
) -> CliError {
    let context = format!("cannot {verb} {}", label(member));
    CliError::from_status(&context, &connection.endpoint, status)
}

/// Waits for the reply, and prints once a second what the change is waiting for.
async fn with_progress<T>(
    connection: &Connection,
    write_out: WriteOut,
    reply: impl Future<Output = T>,
) -> Result<T, CliError> {
    let mut reply = std::pin::pin!(reply);
    loop {
        tokio::select! {
            reply = &mut reply => return Ok(reply),
            Ok(()) = tokio::signal::ctrl_c() => return Err(CliError::Interrupted(
                "interrupted; nothing is undone, and the cluster completes the change if it has \
                 received it: check with 'quorate status', or undo a change in progress with \
                 'quorate member cancel'".to_string(),
            )),
            () = tokio::time::sleep(PROGRESS_INTERVAL) => {}
        }
        let Ok(status) = connection.membership_status().await else { continue };
        let mut names = MemberNames::default();
        names.learn(status.membership.as_ref());
        progress_lines(&names, &status).iter().for_each(|line| print::note(write_out, line));
    }
}
