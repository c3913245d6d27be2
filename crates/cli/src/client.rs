//! Connections to a cluster: which endpoints, which member answers, which one is the leader.
//!
//! The only retry of these commands is here: when an endpoint cannot be reached
//! ([`is_unreachable`]), the next one is tried. Everything else that can be retried is retried
//! by the server, so a refusal is reported as it is.

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
use crate::error::{CliError, status_text};

const DEFAULT_ENDPOINT: &str = "127.0.0.1:2379";
/// The first one that is set is used.
const ENDPOINT_VARIABLES: [&str; 2] = ["QUORATE_ENDPOINTS", "ETCDCTL_ENDPOINTS"];

/// An open connection to one member.
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

    /// etcd's status call, which all servers have.
    pub(crate) async fn status(&self) -> Result<etcd::StatusResponse, Status> {
        let reply = self.maintenance().status(self.request(etcd::StatusRequest {})).await;
        reply.map(tonic::Response::into_inner)
    }

    /// Quorate's own status call; etcd does not have it.
    pub(crate) async fn membership_status(&self) -> Result<wire::StatusReply, Status> {
        let reply = self.membership().status(self.request(wire::StatusRequest {})).await;
        reply.map(tonic::Response::into_inner)
    }

    pub(crate) async fn members(&self) -> Result<Vec<etcd::Member>, CliError> {
        self.member_list().await.map(|list| list.members)
    }

    pub(crate) async fn member_list(&self) -> Result<etcd::MemberListResponse, CliError> {
        self.request_member_list(etcd::MemberListRequest { linearizable: true }).await
    }

    /// The members as this member knows them, possibly stale: the only list that is available
    /// without a leader.
    pub(crate) async fn stale_members(&self) -> Result<Vec<etcd::Member>, CliError> {
        let stale = etcd::MemberListRequest { linearizable: false };
        self.request_member_list(stale).await.map(|list| list.members)
    }

    async fn request_member_list(
        &self,
        request: etcd::MemberListRequest,
    ) -> Result<etcd::MemberListResponse, CliError> {
        let request = self.request(request);
        match self.cluster().member_list(request).await {
            Ok(reply) => Ok(reply.into_inner()),
            // Without a leader the call runs into its deadline; say the cause instead.
            Err(_) if self.status().await.is_ok_and(|status| status.leader == 0) => {
                Err(CliError::failed(format!(
                    "{} reports that the cluster has no leader; check with 'quorate status'",
                    self.endpoint
                )))
            }
            Err(status) => {
                Err(CliError::from_status("cannot list members", &self.endpoint, &status))
            }
        }
    }

    /// The members, with the expected names of those that have not started. Only Quorate's
    /// servers know these: for etcd, a member that has not started has no name.
    pub(crate) async fn named_members(&self) -> Result<Vec<etcd::Member>, CliError> {
        let mut members = self.members().await?;
        if let Ok(status) = self.membership_status().await {
            let expected = status.membership.map(|record| record.members).unwrap_or_default();
            for member in members.iter_mut().filter(|member| member.name.is_empty()) {
                let known = expected.iter().find(|other| other.id == member.id);
                member.name = known.map(|other| other.name.clone()).unwrap_or_default();
            }
        }
        Ok(members)
    }

    /// A request with a deadline, which the server sees as well.
    pub(crate) fn request<T>(&self, message: T) -> tonic::Request<T> {
        self.request_within(message, self.request_timeout)
    }

    pub(crate) fn request_within<T>(&self, message: T, timeout: Duration) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(timeout);
        request
    }
}

/// Connects to the first endpoint that answers. Learners are skipped unless the arguments
/// include them.
pub(crate) async fn connect(arguments: &ClientArguments) -> Result<Connection, CliError> {
    let mut errors = Vec::new();
    for address in endpoints(&arguments.endpoints, |name| std::env::var(name).ok()) {
        match connect_to(&address, arguments).await {
            Ok(connection) => return Ok(connection),
            Err(error @ CliError::Usage(_)) => return Err(error),
            Err(error) => errors.push(error.to_string()),
        }
    }
    Err(CliError::failed(format!(
        "no member answered; set the members' client addresses with --endpoints\n  {}",
        errors.join("\n  ")
    )))
}

/// Connects to this endpoint and checks that a member answers there which may be used.
pub(crate) async fn connect_to(
    address: &str,
    arguments: &ClientArguments,
) -> Result<Connection, CliError> {
    let connection = open(address, arguments.dial_timeout, arguments.command_timeout).await?;
    match connection.status().await {
        Ok(status) if status.is_learner && !arguments.ask_learners => Err(CliError::failed(
            format!("{address} is a learner; add --ask-learners to send requests to learners"),
        )),
        Err(status) if is_unreachable(&status) => {
            // The port is open, but the process there does not speak gRPC.
            let hint = if status.source().is_some() { "; is this the client port?" } else { "" };
            Err(CliError::failed(format!("{address}: {}{hint}", status_text(&status))))
        }
        // A server without the status call may still answer the command itself.
        Ok(_) | Err(_) => Ok(connection),
    }
}

/// A connection to another member than this one, if any is reachable: a member that is being
/// removed may stop before it can reply.
pub(crate) async fn avoid_member(
    connection: Connection,
    id: u64,
    members: &[etcd::Member],
) -> Connection {
    let header = connection.status().await.ok().and_then(|status| status.header);
    if header.is_none_or(|header| header.member_id != id) {
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

/// A connection to the leader if it is reachable, otherwise this connection.
pub(crate) async fn leader_of(connection: &Connection) -> Connection {
    let leader = connect_to_leader(connection).await;
    leader.unwrap_or_else(|| connection.clone())
}

async fn connect_to_leader(connection: &Connection) -> Option<Connection> {
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

/// Opens a connection, so that a wrong address fails here and not at the first request.
pub(crate) async fn open(
    address: &str,
    dial_timeout: Duration,
    request_timeout: Duration,
) -> Result<Connection, CliError> {
    let url = url(address)?;
    let endpoint = Endpoint::from_shared(url)
        .map_err(|error| CliError::usage(format!("'{address}' is not an address: {error}")))?;
    let endpoint = endpoint.connect_timeout(dial_timeout).tcp_nodelay(true);
    let channel = endpoint.connect().await;
    let channel = channel
        .map_err(|error| CliError::with_cause(&format!("cannot connect to {address}"), &error))?;
    Ok(Connection { endpoint: address.to_string(), channel, request_timeout })
}

/// Whether the request did not reach a member that can serve it: another endpoint may.
pub(crate) fn is_unreachable(status: &Status) -> bool {
    let unavailable = matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded);
    unavailable || status.source().is_some()
}

/// The endpoints of the arguments, else of the environment, else this machine's default.
pub(crate) fn endpoints(
    given: &[String],
    variable: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let clean = |list: &mut dyn Iterator<Item = &str>| -> Vec<String> {
        list.map(str::trim).filter(|text| !text.is_empty()).map(str::to_string).collect()
    };
    let from_arguments = clean(&mut given.iter().map(String::as_str));
    if !from_arguments.is_empty() {
        return from_arguments;
    }
    for name in ENDPOINT_VARIABLES {
        let from_variable = clean(&mut variable(name).unwrap_or_default().split(','));
        if !from_variable.is_empty() {
            return from_variable;
        }
    }
    vec![DEFAULT_ENDPOINT.to_string()]
}

fn url(address: &str) -> Result<String, CliError> {
    match address.split_once("://").unwrap_or(("http", address)) {
        ("http", rest) => match rest.trim_end_matches('/').rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(format!("http://{rest}"))
            }
            Some(_) => Err(CliError::usage(format!("'{address}' is not HOST:PORT"))),
            None => Err(CliError::usage(format!(
                "'{address}' has no port; write HOST:PORT (etcd's client port is 2379)"
            ))),
        },
        ("https", _) => Err(CliError::usage(format!(
            "'{address}' needs TLS, which this command does not support yet; use http://"
        ))),
        (scheme, _) => Err(CliError::usage(format!(
            "'{address}' has the unsupported scheme '{scheme}://'; write HOST:PORT or http://HOST:PORT"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_take_precedence_over_variables() {
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
    fn addresses_are_checked() {
        assert_eq!(url("h:1").unwrap(), "http://h:1");
        assert_eq!(url("http://h:1").unwrap(), "http://h:1");
        assert_eq!(url("https://h:1").unwrap_err().exit_code(), 2);
        assert_eq!(url("http://[::1]:1/").unwrap(), "http://[::1]:1/");
        assert!(url("h").unwrap_err().to_string().contains("has no port"));
        assert!(url("h:x").unwrap_err().to_string().contains("is not HOST:PORT"));
        assert!(url("unix://h").unwrap_err().to_string().contains("'unix://'"));
    }
}
