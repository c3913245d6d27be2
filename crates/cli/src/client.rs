//! Connections to a cluster: which endpoints, which member answers, which one is the leader.
//!
//! The only retry of these commands is here: when an endpoint cannot be reached
//! ([`is_unreachable`]), the next one is tried. Everything else that can be retried is retried
//! by the server, so a refusal is reported as it is.

use std::error::Error;
use std::time::Duration;

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::auth_client::AuthClient;
use quorate_proto::etcdserverpb::cluster_client::ClusterClient;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::quorate::v1 as wire;
use quorate_proto::quorate::v1::membership_client::MembershipClient;
use tokio::task::JoinSet;
use tonic::codegen::http::Uri;
use tonic::metadata::AsciiMetadataValue;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::arguments::ClientArguments;
use crate::client_tls::{ClientTls, TlsChannelConnector};
use crate::credentials::{SendToken, UserCredentials};
use crate::error::{CliError, status_text};

const DEFAULT_ENDPOINT: &str = "127.0.0.1:2379";
/// After this time, another endpoint is tried.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);
/// The first one that is set is used.
const ENDPOINT_VARIABLES: [&str; 2] = ["QUORATE_ENDPOINTS", "ETCDCTL_ENDPOINTS"];

/// A connection whose requests carry the token of the user.
pub(crate) type ClientChannel = InterceptedService<Channel, SendToken>;

/// An open connection to one member.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) endpoint: String,
    pub(crate) channel: ClientChannel,
    plain: Channel,
    token: SendToken,
    pub(crate) request_timeout: Duration,
    pub(crate) tls: ClientTls,
    is_tls: bool,
}

/// What opens further connections like this one, for the same user.
pub(crate) struct ConnectionAddress {
    /// The host and the port.
    pub(crate) authority: String,
    pub(crate) tls: Option<TlsChannelConnector>,
    pub(crate) token: Option<String>,
    pub(crate) dial_timeout: Duration,
}

impl Connection {
    pub(crate) fn address(&self, dial_timeout: Duration) -> Result<ConnectionAddress, CliError> {
        let url = url(&self.endpoint, self.tls.default_scheme())?;
        let invalid = || CliError::usage(format!("'{url}' is not an address"));
        let uri: Uri = url.parse().map_err(|_| invalid())?;
        let token = self.token.token.as_ref().and_then(|token| token.to_str().ok());
        Ok(ConnectionAddress {
            authority: uri.authority().ok_or_else(invalid)?.to_string(),
            tls: if self.is_tls { Some(self.tls.connector()?) } else { None },
            token: token.map(str::to_owned),
            dial_timeout,
        })
    }

    /// The same connection for this user. Servers without authentication need no user.
    async fn login(self, user: &UserCredentials) -> Result<Self, CliError> {
        let UserCredentials { name, password } = user;
        let (name, password) = (name.clone(), password.0.clone());
        let request = self.request(etcd::AuthenticateRequest { name, password });
        match self.auth().authenticate(request).await {
            Ok(reply) => {
                let token = AsciiMetadataValue::try_from(reply.into_inner().token);
                let token = token.map_err(|_| CliError::failed("the token is not a text"))?;
                Ok(self.with_token(SendToken { token: Some(token) }))
            }
            Err(status) if status.message() == "etcdserver: authentication is not enabled" => {
                Ok(self)
            }
            Err(status) if is_unreachable(&status) => {
                Err(CliError::failed(format!("{}: {}", self.endpoint, status_text(&status))))
            }
            Err(status) => {
                Err(CliError::from_status("cannot authenticate", &self.endpoint, &status))
            }
        }
    }

    fn with_token(self, token: SendToken) -> Self {
        let channel = InterceptedService::new(self.plain.clone(), token.clone());
        Self { channel, token, ..self }
    }

    /// A connection to another member as the same user. The token of the user is not sent over
    /// a connection without TLS if this one has it.
    pub(crate) async fn open_other(
        &self,
        url: &str,
        dial_timeout: Duration,
    ) -> Result<Self, CliError> {
        if self.is_tls && url.starts_with(HTTP) {
            return Err(CliError::failed(format!(
                "{url} does not use TLS, unlike {}",
                self.endpoint
            )));
        }
        let other = open(url, &self.tls, dial_timeout, self.request_timeout).await?;
        Ok(other.with_token(self.token.clone()))
    }

    pub(crate) fn auth(&self) -> AuthClient<ClientChannel> {
        AuthClient::new(self.channel.clone())
    }

    pub(crate) fn cluster(&self) -> ClusterClient<ClientChannel> {
        ClusterClient::new(self.channel.clone())
    }

    pub(crate) fn kv(&self) -> KvClient<ClientChannel> {
        // A server limits its replies itself; etcdctl accepts any size as well.
        KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub(crate) fn lease(&self) -> LeaseClient<ClientChannel> {
        LeaseClient::new(self.channel.clone())
    }

    pub(crate) fn watch(&self) -> WatchClient<ClientChannel> {
        WatchClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub(crate) fn maintenance(&self) -> MaintenanceClient<ClientChannel> {
        MaintenanceClient::new(self.channel.clone())
    }

    pub(crate) fn membership(&self) -> MembershipClient<ClientChannel> {
        MembershipClient::new(self.channel.clone())
    }

    fn is_tls(&self) -> bool {
        url(&self.endpoint, self.tls.default_scheme()).is_ok_and(|url| url.starts_with(HTTPS))
    }

    /// etcd's status call, which all servers have.
    pub(crate) async fn status(&self) -> Result<etcd::StatusResponse, Status> {
        self.status_and_version().await.map(|(status, _)| status)
    }

    /// The same, with the server's own version; etcd does not send one besides that in the
    /// status.
    pub(crate) async fn status_and_version(
        &self,
    ) -> Result<(etcd::StatusResponse, Option<String>), Status> {
        let reply = self.maintenance().status(self.request(etcd::StatusRequest {})).await?;
        let own = |name| {
            let value = reply.metadata().get(name);
            value.and_then(|value| value.to_str().ok()).map(str::to_string)
        };
        let (version, storage_version) = (own("quorate-version"), own("quorate-storage-version"));
        let mut status = reply.into_inner();
        // The field has the version of etcd's data that the server reports.
        if let Some(storage_version) = storage_version {
            status.storage_version = storage_version;
        }
        Ok((status, version))
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

    /// Whether this member answers a request that a quorum has to confirm. A refusal is an
    /// answer.
    async fn can_confirm(&self, timeout: Duration) -> bool {
        let request = etcd::MemberListRequest { linearizable: true };
        let request = self.request_within(request, self.request_timeout.min(timeout));
        let reply = self.cluster().member_list(request).await;
        reply.map_or_else(|status| !is_unreachable(&status), |_| true)
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

/// Connects to the first endpoint that answers, knows a leader, and can confirm what it says: a
/// member whose disk hangs cannot. Without such an endpoint, to one that knows a leader; without
/// that, to the one with the newest data: a member that was removed or is cut off knows no leader
/// and has stale data. Learners are skipped unless the arguments include them.
pub(crate) async fn connect(arguments: &ClientArguments) -> Result<Connection, CliError> {
    let mut errors = Vec::new();
    let mut newest: Option<((u64, u64), Connection)> = None;
    let mut unconfirmed = Vec::new();
    let addresses = endpoints(&arguments.endpoints, |name| std::env::var(name).ok());
    let has_choice = addresses.len() > 1;
    for address in addresses {
        match connect_to(&address, arguments).await {
            Ok((connection, Some(status))) if status.leader == 0 => {
                let position = (status.raft_term, status.raft_index);
                if newest.as_ref().is_none_or(|(known, _)| position > *known) {
                    newest = Some((position, connection));
                }
            }
            Ok((connection, _)) if !has_choice || connection.can_confirm(CONFIRM_TIMEOUT).await => {
                return Ok(connection);
            }
            Ok((connection, _)) => unconfirmed.push(connection),
            Err(error @ CliError::Usage(_)) => return Err(error),
            Err(error) => errors.push(error.to_string()),
        }
    }
    let newest = newest.map(|(_, connection)| connection);
    if let Some(connection) = first_to_confirm(unconfirmed).await.or(newest) {
        return Ok(connection);
    }
    Err(CliError::failed(format!(
        "no member answered; set the members' client addresses with --endpoints\n  {}",
        errors.join("\n  ")
    )))
}

/// The one that confirms first, else the first one: on a busy machine members that can confirm may
/// need longer than was first allowed.
async fn first_to_confirm(connections: Vec<Connection>) -> Option<Connection> {
    let first = connections.first()?.clone();
    let mut asked = JoinSet::new();
    for connection in connections {
        asked.spawn(async move {
            let confirmed = connection.can_confirm(connection.request_timeout).await;
            confirmed.then_some(connection)
        });
    }
    while let Some(answer) = asked.join_next().await {
        if let Ok(Some(connection)) = answer {
            return Some(connection);
        }
    }
    Some(first)
}

/// Connects to this endpoint and checks that a member answers there which may be used. Returns
/// its status, if the server has that call.
pub(crate) async fn connect_to(
    address: &str,
    arguments: &ClientArguments,
) -> Result<(Connection, Option<etcd::StatusResponse>), CliError> {
    let connection = open_as(address, arguments).await?;
    match connection.status().await {
        Ok(status) if status.is_learner && !arguments.ask_learners => Err(CliError::failed(
            format!("{address} is a learner; add --ask-learners to send requests to learners"),
        )),
        Err(status) if is_unreachable(&status) => {
            // The port is open, but the process there does not speak gRPC.
            let hint = match status.source() {
                Some(_) if connection.is_tls() => "; does the server require a certificate?",
                Some(_) => "; is this the client port, and does it need https://?",
                None => "",
            };
            Err(CliError::failed(format!("{address}: {}{hint}", status_text(&status))))
        }
        // A server without the status call may still answer the command itself.
        Ok(status) => Ok((connection, Some(status))),
        Err(_) => Ok((connection, None)),
    }
}

/// A connection to another member than this one, if any is reachable: a member that is being
/// removed may stop before it can reply. A member that knows no leader is the last choice, since
/// it may be cut off.
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
    let mut without_leader = None;
    for url in others.flat_map(|member| &member.client_urls) {
        let timeout = connection.request_timeout;
        let Ok(other) = connection.open_other(url, timeout).await else { continue };
        match other.status().await {
            Ok(status) if status.leader != 0 => return other,
            Ok(_) => without_leader = without_leader.or(Some(other)),
            Err(_) => {}
        }
    }
    without_leader.unwrap_or(connection)
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
        let timeout = connection.request_timeout;
        if let Ok(opened) = connection.open_other(&url, timeout).await {
            return Some(opened);
        }
    }
    None
}

/// Opens a connection for the user of the arguments.
pub(crate) async fn open_as(
    address: &str,
    arguments: &ClientArguments,
) -> Result<Connection, CliError> {
    let tls = ClientTls::new(&arguments.tls);
    let (dial_timeout, command_timeout) = (arguments.dial_timeout, arguments.command_timeout);
    let connection = open(address, &tls, dial_timeout, command_timeout).await?;
    match arguments.user.resolve()? {
        Some(user) => connection.login(&user).await,
        None => Ok(connection),
    }
}

/// Opens a connection, so that a wrong address fails here and not at the first request.
pub(crate) async fn open(
    address: &str,
    tls: &ClientTls,
    dial_timeout: Duration,
    request_timeout: Duration,
) -> Result<Connection, CliError> {
    let url = url(address, tls.default_scheme())?;
    let is_tls = url.starts_with(HTTPS);
    let endpoint = Endpoint::from_shared(url)
        .map_err(|error| CliError::usage(format!("'{address}' is not an address: {error}")))?;
    let endpoint = endpoint.connect_timeout(dial_timeout).tcp_nodelay(true);
    let channel = match is_tls {
        true => endpoint.connect_with_connector(tls.connector()?).await,
        false => endpoint.connect().await,
    };
    let channel = channel
        .map_err(|error| CliError::with_cause(&format!("cannot connect to {address}"), &error))?;
    let (token, plain) = (SendToken::default(), channel.clone());
    let channel = InterceptedService::new(channel, token.clone());
    let (endpoint, tls) = (address.to_string(), tls.clone());
    Ok(Connection { endpoint, channel, plain, token, request_timeout, tls, is_tls })
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

const HTTP: &str = "http://";
const HTTPS: &str = "https://";

fn url(address: &str, default_scheme: &str) -> Result<String, CliError> {
    let (scheme, rest) = address.split_once("://").unwrap_or((default_scheme, address));
    match scheme {
        "http" | "https" => match rest.trim_end_matches('/').rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(format!("{scheme}://{rest}"))
            }
            Some(_) => Err(CliError::usage(format!("'{address}' is not HOST:PORT"))),
            None => Err(CliError::usage(format!(
                "'{address}' has no port; write HOST:PORT (etcd's client port is 2379)"
            ))),
        },
        scheme => Err(CliError::usage(format!(
            "'{address}' has the unsupported scheme '{scheme}://'; write HOST:PORT, \
             http://HOST:PORT or https://HOST:PORT"
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
        let url = |address| url(address, "http");
        assert_eq!(super::url("h:1", "https").unwrap(), "https://h:1");
        assert_eq!(url("h:1").unwrap(), "http://h:1");
        assert_eq!(url("http://h:1").unwrap(), "http://h:1");
        assert_eq!(url("https://h:1").unwrap(), "https://h:1");
        assert_eq!(url("http://[::1]:1/").unwrap(), "http://[::1]:1/");
        assert!(url("h").unwrap_err().to_string().contains("has no port"));
        assert!(url("h:x").unwrap_err().to_string().contains("is not HOST:PORT"));
        assert!(url("unix://h").unwrap_err().to_string().contains("'unix://'"));
    }
}
