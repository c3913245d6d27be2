//! A client that sends a token with each request.

use quorate_proto::authpb;
use quorate_proto::etcdserverpb::auth_client::AuthClient;
use quorate_proto::etcdserverpb::cluster_client::ClusterClient;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::{
    AuthEnableRequest, AuthRoleAddRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest, AuthUserGrantRoleRequest, AuthenticateRequest,
};
use quorate_proto::quorate::v1::membership_client::MembershipClient;
use tonic::metadata::MetadataValue;
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::support::{TestMember, wait_for};

#[derive(Clone)]
pub(crate) struct WithToken(Option<String>);

impl Interceptor for WithToken {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("token", MetadataValue::try_from(token).unwrap());
        }
        Ok(request)
    }
}

pub(crate) type Authorized = InterceptedService<Channel, WithToken>;

/// A user at one member.
#[derive(Clone)]
pub(crate) struct UserClient {
    channel: Channel,
    token: Option<String>,
}

impl UserClient {
    /// A client without a user.
    pub(crate) async fn anonymous(member: &TestMember) -> Self {
        Self { channel: member.channel().await, token: None }
    }

    pub(crate) async fn login(member: &TestMember, user: &str) -> Self {
        let anonymous = Self::anonymous(member).await;
        let token = anonymous.authenticate(user, &password(user)).await.unwrap();
        Self { token: Some(token), ..anonymous }
    }

    /// The same token at another member.
    pub(crate) async fn at(&self, member: &TestMember) -> Self {
        Self { channel: member.channel().await, token: self.token.clone() }
    }

    /// The same member with another token.
    pub(crate) fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    fn service(&self) -> Authorized {
        InterceptedService::new(self.channel.clone(), WithToken(self.token.clone()))
    }

    pub(crate) async fn authenticate(&self, user: &str, password: &str) -> Result<String, Status> {
        let (name, password) = (user.into(), password.into());
        let reply = self.auth().authenticate(AuthenticateRequest { name, password }).await?;
        Ok(reply.into_inner().token)
    }

    pub(crate) fn auth(&self) -> AuthClient<Authorized> {
        AuthClient::new(self.service())
    }

    pub(crate) fn kv(&self) -> KvClient<Authorized> {
        KvClient::new(self.service())
    }

    pub(crate) fn lease(&self) -> LeaseClient<Authorized> {
        LeaseClient::new(self.service())
    }

    pub(crate) fn watch(&self) -> WatchClient<Authorized> {
        WatchClient::new(self.service())
    }

    pub(crate) fn maintenance(&self) -> MaintenanceClient<Authorized> {
        MaintenanceClient::new(self.service())
    }

    pub(crate) fn cluster(&self) -> ClusterClient<Authorized> {
        ClusterClient::new(self.service())
    }

    /// Our own service.
    pub(crate) fn membership(&self) -> MembershipClient<Authorized> {
        MembershipClient::new(self.service())
    }

    pub(crate) async fn set_password(&self, user: &str, password: &str) {
        let request = AuthUserChangePasswordRequest {
            name: user.into(),
            password: password.into(),
            ..Default::default()
        };
        self.auth().user_change_password(request).await.unwrap();
    }

    pub(crate) async fn add_user(&self, name: &str) {
        let (name, password) = (name.to_owned(), password(name));
        let request = AuthUserAddRequest { name, password, ..Default::default() };
        self.auth().user_add(request).await.unwrap();
    }

    pub(crate) async fn grant_role(&self, user: &str, role: &str) {
        let request = AuthUserGrantRoleRequest { user: user.into(), role: role.into() };
        self.auth().user_grant_role(request).await.unwrap();
    }

    pub(crate) async fn grant(&self, role: &str, mode: Mode, key: &str, range_end: &str) {
        let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
        let perm = Some(authpb::Permission { perm_type: mode as i32, key, range_end });
        let request = AuthRoleGrantPermissionRequest { name: role.into(), perm };
        self.auth().role_grant_permission(request).await.unwrap();
    }
}

pub(crate) use quorate_proto::authpb::permission::Type as Mode;

/// Recognisable, so that it can be searched for.
pub(crate) fn password(user: &str) -> String {
    format!("clear-password-of-{user}")
}

/// Users `root` and `alice`, and authentication enabled. `alice` has the role `some`: she may read
/// "r" to "s", write "w" to "x", and do both with "b".
pub(crate) async fn set_up(member: &TestMember) -> UserClient {
    let client = UserClient::anonymous(member).await;
    wait_for("the cluster serves", async || {
        client.auth().role_add(AuthRoleAddRequest { name: "some".into() }).await.is_ok()
    })
    .await;
    for user in ["root", "alice"] {
        client.add_user(user).await;
    }
    client.grant_role("root", "root").await;
    client.grant_role("alice", "some").await;
    client.grant("some", Mode::Read, "r", "s").await;
    client.grant("some", Mode::Write, "w", "x").await;
    client.grant("some", Mode::Readwrite, "b", "").await;
    client.auth().auth_enable(AuthEnableRequest {}).await.unwrap();
    UserClient::login(member, "root").await
}

/// The code and text of an error.
pub(crate) fn error<T>(reply: Result<T, Status>) -> (Code, String) {
    let Err(status) = reply else { panic!("it was not refused") };
    (status.code(), status.message().to_owned())
}

pub(crate) fn denied() -> (Code, String) {
    (Code::PermissionDenied, "etcdserver: permission denied".into())
}

pub(crate) fn no_user() -> (Code, String) {
    (Code::InvalidArgument, "etcdserver: user name is empty".into())
}

pub(crate) fn old_revision() -> (Code, String) {
    (Code::InvalidArgument, "etcdserver: revision of auth store is old".into())
}

pub(crate) fn bad_token() -> (Code, String) {
    (Code::Unauthenticated, "etcdserver: invalid auth token".into())
}
