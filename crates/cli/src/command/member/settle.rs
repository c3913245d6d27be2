//! `quorate member promote` and `remove`: etcd's calls, which return when they are done.

use std::time::Duration;

use quorate_proto::etcdserverpb as etcd;

use super::list;
use crate::arguments::ClientArguments;
use crate::client::{Connection, besides, connect};
use crate::failure::Failure;
use crate::follow;
use crate::who;
use crate::words::Names;

/// Taking a vote away, settling that and handing over take longer than a read.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
const TELL_EVERY: Duration = Duration::from_secs(1);

pub(crate) async fn promote(client: &ClientArguments, asked: &str) -> Result<(), Failure> {
    let connection = connect(client).await?;
    let members = connection.named_members().await?;
    let member = who::find(&members, asked)?;
    let request =
        connection.request_within(etcd::MemberPromoteRequest { id: member.id }, CHANGE_TIMEOUT);
    let mut cluster = connection.cluster();
    let reply = telling(&connection, cluster.member_promote(request)).await;
    reply.map_err(|status| {
        Failure::answered(
            &format!("cannot promote {}", who::label(member)),
            &connection.endpoint,
            &status,
        )
    })?;
    eprintln!("{} votes", who::label(member));
    list::show_now(&connection, client.write_out).await
}

pub(crate) async fn remove(client: &ClientArguments, asked: &str) -> Result<(), Failure> {
    let connection = connect(client).await?;
    let members = connection.named_members().await?;
    let member = who::find(&members, asked)?;
    let connection = besides(connection, member.id, &members).await;
    let request =
        connection.request_within(etcd::MemberRemoveRequest { id: member.id }, CHANGE_TIMEOUT);
    let mut cluster = connection.cluster();
    let reply = telling(&connection, cluster.member_remove(request)).await;
    reply.map_err(|status| {
        Failure::answered(
            &format!("cannot remove {}", who::label(member)),
            &connection.endpoint,
            &status,
        )
    })?;
    eprintln!("{} is removed; its id is not used again", who::label(member));
    list::show_now(&connection, client.write_out).await
}

/// While the answer takes its time, tells now and then what is being waited for.
async fn telling<T>(connection: &Connection, answer: impl Future<Output = T>) -> T {
    let mut answer = std::pin::pin!(answer);
    loop {
        tokio::select! {
            answer = &mut answer => return answer,
            () = tokio::time::sleep(TELL_EVERY) => {}
        }
        let Ok(reply) = follow::status(connection).await else { continue };
        let mut names = Names::default();
        names.learn(reply.membership.as_ref());
        follow::lines(&names, &reply).iter().for_each(|line| eprintln!("{line}"));
    }
}
