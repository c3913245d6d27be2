//! `quorate lease`: etcdctl's commands, with its output.

use std::time::Duration;

use quorate_proto::etcdserverpb as etcd;
use serde_json::{Value, json};
use tonic::Status;

use super::kv::{base64_text, failure, go_header};
use crate::arguments::{ClientArguments, WriteOut};
use crate::client::{Connection, connect, is_unreachable};
use crate::error::CliError;
use crate::kv_arguments::{LeaseCommand, NamedLease};
use crate::print;

pub(crate) async fn run(command: LeaseCommand) -> Result<(), CliError> {
    match command {
        LeaseCommand::Grant { ttl, client } => grant(ttl, &client).await,
        LeaseCommand::Revoke(NamedLease { id, client }) => revoke(id, &client).await,
        LeaseCommand::TimeToLive { lease: NamedLease { id, client }, keys } => {
            time_to_live(id, keys, &client).await
        }
        LeaseCommand::List(client) => list(&client).await,
        LeaseCommand::KeepAlive { lease: NamedLease { id, client }, once } => {
            keep_alive(id, once, &client).await
        }
    }
}

async fn grant(ttl: i64, client: &ClientArguments) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let request = connection.request(etcd::LeaseGrantRequest { ttl, id: 0 });
    let reply = connection.lease().lease_grant(request).await;
    let reply = reply.map_err(failure("cannot grant a lease", &connection))?.into_inner();
    let text = format!("lease {:016x} granted with TTL({}s)", reply.id, reply.ttl);
    let fields = json!({ "ID": reply.id, "TTL": reply.ttl, "Error": reply.error });
    show(client, &text, reply.header.as_ref(), fields);
    Ok(())
}

async fn revoke(id: i64, client: &ClientArguments) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let request = connection.request(etcd::LeaseRevokeRequest { id });
    let reply = connection.lease().lease_revoke(request).await;
    let reply = reply.map_err(failure("cannot revoke the lease", &connection))?.into_inner();
    match client.write_out {
        WriteOut::Table => print::line(&format!("lease {id:016x} revoked")),
        WriteOut::Json => print::json(&json!({ "header": go_header(reply.header.as_ref()) })),
    }
    Ok(())
}

async fn time_to_live(id: i64, keys: bool, client: &ClientArguments) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let request = connection.request(etcd::LeaseTimeToLiveRequest { id, keys });
    let reply = connection.lease().lease_time_to_live(request).await;
    let reply = reply.map_err(failure("cannot read the lease", &connection))?.into_inner();
    let text = time_to_live_text(id, keys, &reply);
    let encoded: Vec<Value> = reply.keys.iter().map(|key| base64_text(key)).collect();
    let encoded = if encoded.is_empty() { Value::Null } else { encoded.into() };
    let fields =
        json!({ "id": id, "ttl": reply.ttl, "granted-ttl": reply.granted_ttl, "keys": encoded });
    show(client, &text, reply.header.as_ref(), fields);
    Ok(())
}

fn time_to_live_text(id: i64, keys: bool, reply: &etcd::LeaseTimeToLiveResponse) -> String {
    if reply.granted_ttl == 0 && reply.ttl == -1 {
        return format!("lease {id:016x} already expired");
    }
    let (granted, ttl) = (reply.granted_ttl, reply.ttl);
    let text = format!("lease {id:016x} granted with TTL({granted}s), remaining({ttl}s)");
    if !keys {
        return text;
    }
    let keys: Vec<_> = reply.keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
    format!("{text}, attached keys([{}])", keys.join(" "))
}

async fn list(client: &ClientArguments) -> Result<(), CliError> {
    let connection = connect(client).await?;
    let request = connection.request(etcd::LeaseLeasesRequest {});
    let reply = connection.lease().lease_leases(request).await;
    let reply = reply.map_err(failure("cannot list leases", &connection))?.into_inner();
    let mut text = format!("found {} leases", reply.leases.len());
    reply.leases.iter().for_each(|lease| text.push_str(&format!("\n{:016x}", lease.id)));
    let leases: Vec<_> = reply.leases.iter().map(|lease| json!({ "id": lease.id })).collect();
    show(client, &text, reply.header.as_ref(), json!({ "leases": leases }));
    Ok(())
}

/// Sends keep-alives until the lease ends or the command is stopped, each after a third of the
/// time. A member that is lost is replaced by another endpoint while the lease lives.
async fn keep_alive(id: i64, once: bool, client: &ClientArguments) -> Result<(), CliError> {
    let mut connection = connect(client).await?;
    loop {
        let sent = send_keep_alive(id, &connection).await;
        let reply = match sent {
            Ok(reply) => reply,
            Err(status) if is_unreachable(&status) && !once => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                connection = connect(client).await?;
                continue;
            }
            Err(status) => return Err(failure("cannot keep the lease alive", &connection)(status)),
        };
        if reply.ttl <= 0 {
            return Err(CliError::failed(format!("lease {id:016x} expired or revoked.")));
        }
        let text = format!("lease {id:016x} keepalived with TTL({})", reply.ttl);
        let fields = json!({ "ID": reply.id, "TTL": reply.ttl });
        show(client, &text, reply.header.as_ref(), fields);
        if once {
            return Ok(());
        }
        let third = u64::try_from(reply.ttl).unwrap_or(1).saturating_mul(1000) / 3;
        tokio::time::sleep(Duration::from_millis(third)).await;
    }
}

async fn send_keep_alive(
    id: i64,
    connection: &Connection,
) -> Result<etcd::LeaseKeepAliveResponse, Status> {
    let request = tokio_stream::once(etcd::LeaseKeepAliveRequest { id });
    let request = connection.request(request);
    let mut replies = connection.lease().lease_keep_alive(request).await?.into_inner();
    let reply = replies.message().await?;
    reply.ok_or_else(|| Status::unavailable("the server ended the call without a reply"))
}

/// etcdctl's JSON for leases has the fields of the header beside the others.
fn show(
    client: &ClientArguments,
    text: &str,
    header: Option<&etcd::ResponseHeader>,
    fields: Value,
) {
    match client.write_out {
        WriteOut::Table => print::line(text),
        WriteOut::Json => {
            let mut object = go_header(header);
            if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
                object.extend(fields);
            }
            print::json(&object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expired_lease_is_reported() {
        let mut reply = etcd::LeaseTimeToLiveResponse { ttl: -1, ..Default::default() };
        assert_eq!(time_to_live_text(26, true, &reply), "lease 000000000000001a already expired");
        (reply.ttl, reply.granted_ttl, reply.keys) = (7, 60, vec!["a".into(), "b".into()]);
        assert_eq!(
            time_to_live_text(26, true, &reply),
            "lease 000000000000001a granted with TTL(60s), remaining(7s), attached keys([a b])"
        );
    }
}
