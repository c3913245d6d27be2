//! Random histories of users, roles, passwords, tokens and requests, at etcd and at this server.
//! Every response must be equal, refusals included.
//!
//! etcd before 3.7 has fewer checks: a server that refuses what it allows is right there, and the
//! test is skipped.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper_util::rt::TokioIo;
use quorate_proto::etcdserverpb::AuthenticateRequest;
use quorate_proto::etcdserverpb::auth_client::AuthClient;
use quorate_proto::etcdserverpb::request_op::Request as Operation;
use quorate_proto::etcdserverpb::{
    AuthRoleListRequest, AuthUserListRequest, DeleteRangeRequest, LeaseLeasesRequest,
    LeaseRevokeRequest, TxnRequest,
};
use quorate_server::AuthConfig;
use quorate_server::RunningServer;
use quorate_server::config::{ClusterState, ServerConfig};
use tokio::net::{TcpSocket, TcpStream};
use tonic::Code;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

use crate::auth_steps::{AuthStep, PASSWORDS, ROLES};
use crate::compare::{Comparable, ServerClients};
use crate::etcd::Etcd;
use crate::random_requests::{RandomRequest, RandomRequests};
use crate::support::TestMember;

const HISTORIES: u64 = 12;
const STEPS: usize = 60;
/// Each watch resets a stream when it is dropped, and etcd closes a connection with many of them.
const HISTORIES_PER_CONNECTION: u64 = 25;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_of_users_and_roles_are_equal() {
    let Some(etcd) = Etcd::start() else {
        eprintln!("skipped: etcd is not installed");
        return;
    };
    let version = etcd.version().await;
    if version < (3, 7) {
        eprintln!("skipped: etcd {}.{} is older than 3.7", version.0, version.1);
        return;
    }
    let member = TestMember::new("ours");
    let auth = AuthConfig { bcrypt_cost: 4, ..AuthConfig::default() };
    let config = ServerConfig { auth, ..member.config(&[&member], ClusterState::New) };
    let running = RunningServer::start(config).await.unwrap();
    running.wait_ready().await;
    let address = running.client_addresses()[0];
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap())
    };
    let first = number("SEED", 1);
    let mut histories = Histories {
        etcd: ServerClients::new(etcd.channel().await),
        ours: ServerClients::new(member.channel().await),
        ours_at: address,
        revision: 1,
        compacted: -1,
        guesses: 0,
        counts: Counts::default(),
    };
    let count = number("HISTORIES", HISTORIES);
    for seed in first..first + count {
        if (seed - first) % HISTORIES_PER_CONNECTION == 0 {
            histories.etcd = ServerClients::new(etcd.channel().await);
            histories.ours = ServerClients::new(member.channel().await);
        }
        History::new(&mut histories, seed).run().await;
    }
    let Counts { steps, refused, logins } = histories.counts;
    eprintln!(
        "{count} histories, {steps} equal responses, {refused} of them refusals, {logins} logins"
    );
    assert!(refused > steps / 20 && refused < steps * 3 / 4, "{refused} of {steps} are refused");
    running.stop().await;
}

/// Both servers, which take one history after the other.
struct Histories {
    etcd: ServerClients,
    ours: ServerClients,
    ours_at: SocketAddr,
    revision: i64,
    compacted: i64,
    /// Logins with a wrong password, each from an address of its own: failures of one address are
    /// delayed here, and not in etcd.
    guesses: u32,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    steps: u64,
    refused: u64,
    logins: u64,
}

/// Who takes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    Anonymous,
    Forged,
    /// By the number of a login.
    Session(usize),
}

/// One history, from users that do not exist to users that no longer exist.
struct History<'a> {
    both: &'a mut Histories,
    random: RandomRequests,
    seed: u64,
    number: usize,
    users: Vec<String>,
    /// The tokens of each login: of etcd, and of this server.
    sessions: Vec<(String, [String; 2])>,
    is_enabled: bool,
    root_password: &'static str,
}

impl<'a> History<'a> {
    fn new(both: &'a mut Histories, seed: u64) -> Self {
        // Names that no earlier history has used: their failed logins are forgotten.
        let mut users = vec!["root".to_owned()];
        users.extend((1..=3).map(|number| format!("u{number}-{seed}")));
        Self {
            both,
            random: RandomRequests::new(seed).without_disputed(),
            seed,
            number: 0,
            users,
            sessions: Vec::new(),
            is_enabled: false,
            root_password: "one",
        }
    }

    async fn run(mut self) {
        self.prepare().await;
        for _ in 0..STEPS {
            self.random_step().await;
        }
        self.clean_up().await;
    }

    async fn prepare(&mut self) {
        let users = self.users.clone();
        for name in &users {
            let (name, password) = (name.clone(), "one");
            self.run_as_root(AuthStep::UserAdd { name, password, no_password: false }).await;
        }
        self.run_as_root(AuthStep::GrantRole { user: "root".into(), role: "root" }).await;
        for role in &ROLES[..3] {
            self.run_as_root(AuthStep::RoleAdd(role)).await;
            for _ in 0..3 {
                let permission = Some(self.random.permission());
                self.run_as_root(AuthStep::Grant { role, permission }).await;
            }
        }
        for user in &users[1..] {
            for role in [self.random.of(&ROLES[..3]), self.random.of(&ROLES[..3])] {
                self.run_as_root(AuthStep::GrantRole { user: user.clone(), role }).await;
            }
        }
        for _ in 0..10 {
            let request = self.random.request(self.both.revision, self.both.compacted);
            self.run_as_root(AuthStep::Data(request)).await;
        }
        self.run_as_root(AuthStep::Enable).await;
        for user in users {
            self.log_in(user, "one").await;
        }
    }

    async fn random_step(&mut self) {
        match self.random.below(100) {
            0..50 => {
                let request = self.random.request(self.both.revision, self.both.compacted);
                let caller = self.caller();
                // etcd lets anyone run a transaction that does nothing.
                if !matches!(&request, RandomRequest::Txn(txn) if does_nothing(txn)) {
                    self.take(caller, AuthStep::Data(request)).await;
                }
            }
            50..60 => {
                let (caller, create) = (self.caller(), self.random.watch());
                self.take(caller, AuthStep::Watch(create)).await;
            }
            60..85 => {
                let step = self.random.auth_step(&self.users);
                // Mostly by a user who may do it.
                let root = self.newest_session("root").filter(|_| !self.random.one_in(4));
                let caller = root.unwrap_or_else(|| self.caller());
                self.take(caller, step).await;
            }
            85..93 => {
                let user = self.users[self.random.below(self.users.len())].clone();
                let password = match user == "root" {
                    // Root would have to wait after failures.
                    true => self.root_password,
                    false => self.random.of(&PASSWORDS),
                };
                self.log_in(user, password).await;
            }
            _ => {
                let (caller, step) = (self.caller(), self.random.upkeep_step());
                self.take(caller, step).await;
            }
        }
    }

    /// Mostly somebody who has logged in.
    fn caller(&mut self) -> Caller {
        match self.random.below(20) {
            0 => Caller::Anonymous,
            1 => Caller::Forged,
            2..5 if !self.sessions.is_empty() => {
                Caller::Session(self.random.below(self.sessions.len()))
            }
            _ => {
                let user = self.users[self.random.below(self.users.len())].clone();
                self.newest_session(&user).unwrap_or(Caller::Anonymous)
            }
        }
    }

    fn newest_session(&self, user: &str) -> Option<Caller> {
        let newest = self.sessions.iter().rposition(|(name, _)| name == user);
        newest.map(Caller::Session)
    }

    async fn run_as_root(&mut self, step: AuthStep) -> bool {
        let caller = self.newest_session("root").unwrap_or(Caller::Anonymous);
        self.take(caller, step).await
    }

    /// Takes a step at both servers. Returns whether they have accepted it.
    async fn take(&mut self, caller: Caller, step: AuthStep) -> bool {
        let label = self.label();
        let [etcd_token, our_token] = match caller {
            Caller::Anonymous => [None, None],
            Caller::Forged => [(); 2].map(|()| Some("forged.1".to_owned())),
            Caller::Session(number) => self.sessions[number].1.clone().map(Some),
        };
        let Histories { etcd, ours, .. } = &mut *self.both;
        etcd.token.set(etcd_token);
        ours.token.set(our_token);
        let (theirs, ours) = tokio::join!(etcd.take(&step), ours.take(&step));
        let who = match caller {
            Caller::Session(number) => &self.sessions[number].0,
            _ => "",
        };
        let is_data_error = has_data_errors(&step, &ours) && has_data_errors(&step, &theirs);
        assert!(
            is_data_error || ours == theirs,
            "ours {ours:?}, etcd {theirs:?}; {label}: {step:?} by {caller:?} {who}"
        );
        self.both.counts.steps += 1;
        match &theirs {
            Ok((revision, _)) => self.note(*revision, &step),
            Err(_) => self.both.counts.refused += 1,
        }
        theirs.is_ok()
    }

    fn label(&mut self) -> String {
        self.number += 1;
        format!("seed {}, step {}, revision {}", self.seed, self.number, self.both.revision)
    }

    /// Remembers what a successful step has changed.
    fn note(&mut self, revision: i64, step: &AuthStep) {
        self.both.revision = self.both.revision.max(revision);
        match step {
            AuthStep::Data(RandomRequest::Compact(compaction)) => {
                self.both.compacted = compaction.revision;
            }
            AuthStep::Enable => self.is_enabled = true,
            AuthStep::Disable => self.is_enabled = false,
            AuthStep::ChangePassword { name, password } if name == "root" => {
                self.root_password = password;
            }
            AuthStep::UserAdd { name, password, .. } if name == "root" => {
                self.root_password = password;
            }
            _ => {}
        }
    }

    async fn log_in(&mut self, user: String, password: &'static str) {
        let label = self.label();
        let request = || AuthenticateRequest { name: user.clone(), password: password.into() };
        let theirs = AuthClient::new(self.both.etcd.channel.clone()).authenticate(request()).await;
        // Where etcd refuses it, it counts as a guess.
        let channel = match &theirs {
            Ok(_) => self.both.ours.channel.clone(),
            Err(_) => self.both.guessing_channel().await,
        };
        let ours = AuthClient::new(channel).authenticate(request()).await;
        self.both.counts.logins += 1;
        match (theirs, ours) {
            (Ok(theirs), Ok(ours)) => {
                let tokens = [theirs.into_inner().token, ours.into_inner().token];
                self.sessions.push((user, tokens));
            }
            (Err(theirs), Err(ours)) => {
                let [theirs, ours] = [theirs, ours].map(|it| (it.code(), it.message().to_owned()));
                // Here a user without a password cannot be told from others.
                let theirs = match theirs.1.contains("no password user") {
                    true => (Code::InvalidArgument, AUTH_FAILED.to_owned()),
                    false => theirs,
                };
                assert_eq!(ours, theirs, "ours, then etcd; {label}: login of {user}");
            }
            (theirs, ours) => panic!("{label}: login of {user}: etcd {theirs:?}, ours {ours:?}"),
        }
    }

    /// Removes everything, so that the next history begins like the first.
    async fn clean_up(&mut self) {
        if self.is_enabled {
            self.log_in("root".into(), self.root_password).await;
            assert!(self.run_as_root(AuthStep::Disable).await);
        }
        let anonymous = Caller::Anonymous;
        for name in self.both.users().await {
            assert!(self.take(anonymous, AuthStep::UserDelete(name)).await);
        }
        let known: HashSet<&str> = ROLES.into_iter().chain(["unknown"]).collect();
        for role in self.both.roles().await {
            let role = *known.get(role.as_str()).unwrap();
            assert!(self.take(anonymous, AuthStep::RoleDelete(role)).await);
        }
        for id in self.both.leases().await {
            let revoke = RandomRequest::Revoke(LeaseRevokeRequest { id });
            assert!(self.take(anonymous, AuthStep::Data(revoke)).await);
        }
        let (key, range_end) = ("\0".into(), "\0".into());
        let all = DeleteRangeRequest { key, range_end, prev_kv: true };
        assert!(self.take(anonymous, AuthStep::Data(RandomRequest::Delete(all))).await);
        assert!(self.take(anonymous, AuthStep::Status).await);
    }
}

fn does_nothing(txn: &TxnRequest) -> bool {
    let operations = txn.success.iter().chain(&txn.failure);
    txn.compare.is_empty()
        && operations.into_iter().all(|operation| match &operation.request {
            Some(Operation::RequestTxn(nested)) => does_nothing(nested),
            _ => false,
        })
}

/// Whether a transaction is refused because of its keys, leases or revisions. If several of them
/// are wrong, versions of etcd report different ones.
fn has_data_errors(step: &AuthStep, response: &Comparable) -> bool {
    let is_txn = matches!(step, AuthStep::Data(RandomRequest::Txn(_)));
    let text = response.as_ref().err().map(|(_, text)| text.as_str());
    is_txn && text.is_some_and(|text| DATA_ERRORS.contains(&text))
}

const DATA_ERRORS: [&str; 4] = [
    "etcdserver: key not found",
    "etcdserver: requested lease not found",
    "etcdserver: mvcc: required revision has been compacted",
    "etcdserver: mvcc: required revision is a future revision",
];
const AUTH_FAILED: &str = "etcdserver: authentication failed, invalid user ID or password";

impl Histories {
    async fn users(&mut self) -> Vec<String> {
        let mut auth = AuthClient::new(self.etcd.channel.clone());
        auth.user_list(AuthUserListRequest {}).await.unwrap().into_inner().users
    }

    async fn roles(&mut self) -> Vec<String> {
        let mut auth = AuthClient::new(self.etcd.channel.clone());
        auth.role_list(AuthRoleListRequest {}).await.unwrap().into_inner().roles
    }

    async fn leases(&mut self) -> Vec<i64> {
        use quorate_proto::etcdserverpb::lease_client::LeaseClient;
        let mut lease = LeaseClient::new(self.etcd.channel.clone());
        let listed = lease.lease_leases(LeaseLeasesRequest {}).await.unwrap().into_inner();
        listed.leases.into_iter().map(|lease| lease.id).collect()
    }

    /// A connection to this server from another address of this machine.
    async fn guessing_channel(&mut self) -> Channel {
        self.guesses += 1;
        let [_, second, third, fourth] = self.guesses.to_be_bytes();
        let from = Ipv4Addr::new(127, 1 + second, third, fourth);
        let endpoint = Endpoint::from_shared(format!("http://{}", self.ours_at)).unwrap();
        let connector = FromAddress { from: (from, 0).into(), to: self.ours_at };
        endpoint.connect_with_connector(connector).await.unwrap()
    }
}

/// Connects from this address.
#[derive(Clone, Copy)]
struct FromAddress {
    from: SocketAddr,
    to: SocketAddr,
}

impl Service<Uri> for FromAddress {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<TcpStream>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let Self { from, to } = *self;
        Box::pin(async move {
            let socket = TcpSocket::new_v4()?;
            socket.bind(from)?;
            Ok(TokioIo::new(socket.connect(to).await?))
        })
    }
}
