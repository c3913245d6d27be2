//! Reaching a cluster: which addresses, which member answers, who leads.

use std::error::Error;
use std::time::Duration;

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::cluster_client::ClusterClient;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::quorate::v1 as wire;
use quorate_proto::quorate::v1::membership_client::MembershipClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::arguments::ClientArguments;
use crate::failure::{Failure, said};

const DEFAULT_ENDPOINT: &str = "127.0.0.1:2379";
/// The first of these that is set counts.
const ENDPOINT_VARIABLES: [&str; 2] = ["QUORATE_ENDPOINTS", "ETCDCTL_ENDPOINTS"];

/// A member that answers.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) endpoint: String,
    pub(crate) channel: Channel,
    pub(crate) request_timeout: Duration,
}

impl Connection {
    pub(crate) fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel.clone())
    }

    pub(crate) fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone())
    }

    pub(crate) fn membership(&self) -> MembershipClient<Channel> {
        MembershipClient::new(self.channel.clone())
    }

    pub(crate) async fn status(&self) -> Result<etcd::StatusResponse, Status> {
        let asked = self.maintenance().status(self.request(etcd::StatusRequest {})).await;
        asked.map(tonic::Response::into_inner)
    }

    pub(crate) async fn members(&self) -> Result<Vec<etcd::Member>, Failure> {
        self.member_list().await.map(|list| list.members)
    }

    pub(crate) async fn member_list(&self) -> Result<etcd::MemberListResponse, Failure> {
        self.member_list_as(true).await
    }

    /// As this member knows them. Without a leader there is nothing better to be had.
    pub(crate) async fn members_known(&self) -> Result<Vec<etcd::Member>, Failure> {
        self.member_list_as(false).await.map(|list| list.members)
    }

    async fn member_list_as(
        &self,
        linearizable: bool,
    ) -> Result<etcd::MemberListResponse, Failure> {
        let asked = self.request(etcd::MemberListRequest { linearizable });
        let reply = self.cluster().member_list(asked).await;
        match reply {
            Ok(reply) => Ok(reply.into_inner()),
            // Without a leader it takes until the deadline, and says no more than that.
            Err(_) if self.status().await.is_ok_and(|status| status.leader == 0) => {
                Err(Failure::failed(format!(
                    "nobody leads the cluster now, as {} sees it; look with 'quorate status'",
                    self.endpoint
                )))
            }
            Err(status) => Err(Failure::answered("cannot list members", &self.endpoint, &status)),
        }
    }

    /// The members with the names that they are expected to have, where the server knows of
    /// such things: to etcd's clients one that has not started has no name.
    pub(crate) async fn named_members(&self) -> Result<Vec<etcd::Member>, Failure> {
        let mut members = self.members().await?;
        let asked = self.request(wire::StatusRequest {});
        if let Ok(own) = self.membership().status(asked).await {
            let expected = own.into_inner().membership.map(|own| own.members).unwrap_or_default();
            for member in members.iter_mut().filter(|member| member.name.is_empty()) {
                let known = expected.iter().find(|one| one.id == member.id);
                member.name = known.map(|one| one.name.clone()).unwrap_or_default();
            }
        }
        Ok(members)
    }

    /// With a deadline, so that the server knows it too.
    pub(crate) fn request<T>(&self, message: T) -> tonic::Request<T> {
        self.request_within(message, self.request_timeout)
    }

    pub(crate) fn request_within<T>(&self, message: T, timeout: Duration) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(timeout);
        request
    }
}

/// The first of the endpoints that answers and is no learner, unless learners are asked too.
pub(crate) async fn connect(asked: &ClientArguments) -> Result<Connection, Failure> {
    let mut tried = Vec::new();
    for address in endpoints(&asked.endpoints, |name| std::env::var(name).ok()) {
        match open_to_ask(&address, asked).await {
            Ok(connection) => return Ok(connection),
            Err(failure @ Failure::Usage(_)) => return Err(failure),
            Err(failure) => tried.push(failure.to_string()),
        }
    }
    Err(Failure::failed(format!(
        "no member answers; tell where they are with --endpoints\n  {}",
        tried.join("\n  ")
    )))
}

/// A connection to somebody who answers there, and is to be asked.
pub(crate) async fn open_to_ask(
    address: &str,
    asked: &ClientArguments,
) -> Result<Connection, Failure> {
    let connection = open(address, asked.dial_timeout, asked.command_timeout).await?;
    match connection.status().await {
        Ok(status) if status.is_learner && !asked.ask_learners => {
            Err(Failure::failed(format!("{address} is a learner; ask it with --ask-learners")))
        }
        Err(status) if unreachable(&status) => {
            // Somebody listens there, and says nothing that makes sense.
            let hint =
                if status.source().is_some() { "; is that the port for clients?" } else { "" };
            Err(Failure::failed(format!("{address}: {}{hint}", said(&status))))
        }
        // Who cannot tell its status may still answer what is asked.
        Ok(_) | Err(_) => Ok(connection),
    }
}

/// Somebody else than this member, if there is anybody: who is to go may be gone before it
/// can tell that it worked.
pub(crate) async fn besides(
    connection: Connection,
    id: u64,
    members: &[etcd::Member],
) -> Connection {
    let asked = connection.status().await.ok().and_then(|status| status.header);
    if asked.is_none_or(|header| header.member_id != id) {
        return connection;
    }
    let others = members.iter().filter(|member| member.id != id && !member.is_learner);
    for url in others.flat_map(|member| &member.client_urls) {
        let timeout = connection.request_timeout;
        if let Ok(other) = open(url, timeout, timeout).await {
            return other;
        }
    }
    connection
}

/// The one who leads, when it can be reached; otherwise who was asked.
pub(crate) async fn leader_of(connection: &Connection) -> Connection {
    let found = try_leader_of(connection).await;
    found.unwrap_or_else(|| connection.clone())
}

async fn try_leader_of(connection: &Connection) -> Option<Connection> {
    let status = connection.status().await.ok()?;
    if status.header.as_ref().is_some_and(|header| header.member_id == status.leader) {
        return None;
    }
    let members = connection.members().await.ok()?;
    let leader = members.into_iter().find(|member| member.id == status.leader)?;
    for url in leader.client_urls {
        let opened = open(&url, connection.request_timeout, connection.request_timeout).await;
        if let Ok(opened) = opened {
            return Some(opened);
        }
    }
    None
}

/// A connection to this address. It is tried out, so that a wrong one is noticed here.
pub(crate) async fn open(
    address: &str,
    dial_timeout: Duration,
    request_timeout: Duration,
) -> Result<Connection, Failure> {
    let url = url(address)?;
    let endpoint = Endpoint::from_shared(url)
        .map_err(|why| Failure::usage(format!("'{address}' is not an address: {why}")))?;
    let endpoint = endpoint.connect_timeout(dial_timeout).tcp_nodelay(true);
    let channel = endpoint.connect().await;
    let channel =
        channel.map_err(|why| Failure::because(&format!("cannot reach {address}"), &why))?;
    Ok(Connection { endpoint: address.to_string(), channel, request_timeout })
}

/// No server said this, or one that cannot be asked anything now.
fn unreachable(status: &Status) -> bool {
    let silent = matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded);
    silent || status.source().is_some()
}

/// What was given, else what the environment says, else this machine.
pub(crate) fn endpoints(
    given: &[String],
    variable: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let clean = |list: &mut dyn Iterator<Item = &str>| -> Vec<String> {
        list.map(str::trim).filter(|text| !text.is_empty()).map(str::to_string).collect()
    };
    let found = clean(&mut given.iter().map(String::as_str));
    if !found.is_empty() {
        return found;
    }
    for name in ENDPOINT_VARIABLES {
        let found = clean(&mut variable(name).unwrap_or_default().split(','));
        if !found.is_empty() {
            return found;
        }
    }
    vec![DEFAULT_ENDPOINT.to_string()]
}

fn url(address: &str) -> Result<String, Failure> {
    match address.split_once("://") {
        None => url(&format!("http://{address}")),
        Some(("http", rest)) => match rest.trim_end_matches('/').rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(address.to_string())
            }
            Some(_) => Err(Failure::usage(format!("'{address}' is not HOST:PORT"))),
            None => Err(Failure::usage(format!(
                "'{address}' has no port; it is HOST:PORT, and etcd's port is 2379"
            ))),
        },
        Some(("https", _)) => Err(Failure::usage(format!(
            "'{address}' asks for TLS, which these commands do not speak yet; use http://"
        ))),
        Some((scheme, _)) => Err(Failure::usage(format!(
            "'{address}' begins with '{scheme}://'; addresses are HOST:PORT or http://HOST:PORT"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_beat_variables() {
        let given = |list: &[&str]| list.iter().map(|text| (*text).to_string()).collect::<Vec<_>>();
        let variable = |name: &str| match name {
            "QUORATE_ENDPOINTS" => Some(" q:1, q:2,".to_string()),
            "ETCDCTL_ENDPOINTS" => Some("e:1".to_string()),
            _ => None,
        };
        assert_eq!(endpoints(&given(&["a:1", "b:1"]), variable), ["a:1", "b:1"]);
        assert_eq!(endpoints(&[], variable), ["q:1", "q:2"]);
        let etcd_only = |name: &str| (name == "ETCDCTL_ENDPOINTS").then(|| "e:1".to_string());
        assert_eq!(endpoints(&[], etcd_only), ["e:1"]);
        assert_eq!(endpoints(&given(&["", " "]), |_| Some(String::new())), [DEFAULT_ENDPOINT]);
    }

    #[test]
    fn addresses() {
        assert_eq!(url("h:1").unwrap(), "http://h:1");
        assert_eq!(url("http://h:1").unwrap(), "http://h:1");
        assert_eq!(url("https://h:1").unwrap_err().code(), 2);
        assert_eq!(url("http://[::1]:1/").unwrap(), "http://[::1]:1/");
        assert!(url("h").unwrap_err().to_string().contains("has no port"));
        assert!(url("h:x").unwrap_err().to_string().contains("is not HOST:PORT"));
        assert!(url("unix://h").unwrap_err().to_string().contains("'unix://'"));
    }
}
