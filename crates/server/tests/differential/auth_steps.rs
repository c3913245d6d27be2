//! Random steps of users, roles and requests, and how one server takes them.

use quorate_proto::authpb::permission::Type as Mode;
use quorate_proto::authpb::{Permission, UserAddOptions};
use quorate_proto::etcdserverpb::auth_client::AuthClient;
use quorate_proto::etcdserverpb::cluster_client::ClusterClient;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    AlarmRequest, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
    AuthRoleGetRequest, AuthRoleGrantPermissionRequest, AuthRoleListRequest,
    AuthRoleRevokePermissionRequest, AuthStatusRequest, AuthUserAddRequest,
    AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGetRequest,
    AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserRevokeRoleRequest, HashKvRequest,
    MemberListRequest, StatusRequest, WatchCreateRequest, WatchRequest,
};
use tokio_stream::StreamExt;
use tonic::Status;

use crate::compare::{Comparable, ServerClients, clear, comparable};
use crate::random_requests::{RandomRequest, RandomRequests};
use crate::support::TEST_TIMEOUT;

#[derive(Clone, Debug)]
pub(crate) enum AuthStep {
    Enable,
    Disable,
    Status,
    UserAdd {
        name: String,
        password: &'static str,
        no_password: bool,
    },
    UserGet(String),
    UserList,
    UserDelete(String),
    ChangePassword {
        name: String,
        password: &'static str,
    },
    GrantRole {
        user: String,
        role: &'static str,
    },
    RevokeRole {
        user: String,
        role: &'static str,
    },
    RoleAdd(&'static str),
    RoleGet(&'static str),
    RoleList,
    RoleDelete(&'static str),
    Grant {
        role: &'static str,
        permission: Option<Permission>,
    },
    Revoke {
        role: &'static str,
        permission: Permission,
    },
    Data(RandomRequest),
    /// Creates a watch; the response tells whether it is allowed.
    Watch(WatchCreateRequest),
    MemberList,
    MemberStatus,
    AlarmList,
    HashKv,
}

pub(crate) const ROLES: [&str; 4] = ["r1", "r2", "r3", "root"];
pub(crate) const PASSWORDS: [&str; 3] = ["one", "two", "three"];

impl RandomRequests {
    /// A change or a query of users and roles.
    pub(crate) fn auth_step(&mut self, users: &[String]) -> AuthStep {
        let name = match self.one_in(30) {
            true => ["", "unknown"][self.below(2)].to_owned(),
            false => users[self.below(users.len())].clone(),
        };
        let role = if self.one_in(30) { self.of(&["", "unknown"]) } else { self.of(&ROLES) };
        let password = self.of(&PASSWORDS);
        match self.below(100) {
            0..4 => AuthStep::Enable,
            4..7 => AuthStep::Disable,
            7..9 => AuthStep::Status,
            9..16 => AuthStep::UserAdd { name, password, no_password: self.one_in(5) },
            16..22 => AuthStep::UserGet(name),
            22..24 => AuthStep::UserList,
            24..28 => AuthStep::UserDelete(name),
            28..36 => AuthStep::ChangePassword { name, password },
            36..49 => AuthStep::GrantRole { user: name, role },
            49..57 => AuthStep::RevokeRole { user: name, role },
            57..62 => AuthStep::RoleAdd(role),
            62..68 => AuthStep::RoleGet(role),
            68..70 => AuthStep::RoleList,
            70..73 => AuthStep::RoleDelete(role),
            73..90 => {
                let permission = (!self.one_in(30)).then(|| self.permission());
                AuthStep::Grant { role, permission }
            }
            _ => AuthStep::Revoke { role, permission: self.permission() },
        }
    }

    /// A call that needs no keys.
    pub(crate) fn upkeep_step(&mut self) -> AuthStep {
        match self.below(4) {
            0 => AuthStep::MemberList,
            1 => AuthStep::MemberStatus,
            2 => AuthStep::AlarmList,
            _ => AuthStep::HashKv,
        }
    }

    /// The permissions of one history that begin with the same key also have the same end: etcd
    /// does not always find a permission among others with its key, and then grants it twice.
    pub(crate) fn permission(&mut self) -> Permission {
        let mode = self.of(&[Mode::Read, Mode::Write, Mode::Readwrite, Mode::Readwrite]);
        let key = self.key();
        let range_end = self.end_for(&key);
        Permission { perm_type: mode as i32, key, range_end }
    }
}

impl ServerClients {
    /// The response to a step, without what differs from server to server.
    pub(crate) async fn take(&mut self, step: &AuthStep) -> Comparable {
        let taken = tokio::time::timeout(TEST_TIMEOUT, self.take_without_timeout(step)).await;
        taken.unwrap_or_else(|_| panic!("no response to {step:?}"))
    }

    async fn take_without_timeout(&mut self, step: &AuthStep) -> Comparable {
        let mut auth = AuthClient::new(self.service());
        match step.clone() {
            AuthStep::Enable => {
                comparable(auth.auth_enable(AuthEnableRequest {}).await, |it| &mut it.header)
            }
            AuthStep::Disable => {
                comparable(auth.auth_disable(AuthDisableRequest {}).await, |it| &mut it.header)
            }
            AuthStep::Status => {
                comparable(auth.auth_status(AuthStatusRequest {}).await, |it| &mut it.header)
            }
            AuthStep::UserAdd { name, password, no_password } => {
                let password = if no_password { "" } else { password }.to_owned();
                let options = Some(UserAddOptions { no_password });
                let request = AuthUserAddRequest { name, password, options, ..Default::default() };
                comparable(auth.user_add(request).await, |it| &mut it.header)
            }
            AuthStep::UserGet(name) => {
                comparable(auth.user_get(AuthUserGetRequest { name }).await, |it| &mut it.header)
            }
            AuthStep::UserList => {
                comparable(auth.user_list(AuthUserListRequest {}).await, |it| &mut it.header)
            }
            AuthStep::UserDelete(name) => {
                let request = AuthUserDeleteRequest { name };
                comparable(auth.user_delete(request).await, |it| &mut it.header)
            }
            AuthStep::ChangePassword { name, password } => {
                let password = password.to_owned();
                let request =
                    AuthUserChangePasswordRequest { name, password, ..Default::default() };
                comparable(auth.user_change_password(request).await, |it| &mut it.header)
            }
            AuthStep::GrantRole { user, role } => {
                let request = AuthUserGrantRoleRequest { user, role: role.into() };
                comparable(auth.user_grant_role(request).await, |it| &mut it.header)
            }
            AuthStep::RevokeRole { user, role } => {
                let request = AuthUserRevokeRoleRequest { name: user, role: role.into() };
                comparable(auth.user_revoke_role(request).await, |it| &mut it.header)
            }
            AuthStep::Data(request) => self.send(&request).await,
            AuthStep::Watch(create) => self.try_watch(create).await,
            step => self.take_role_or_upkeep_step(step).await,
        }
    }

    async fn take_role_or_upkeep_step(&self, step: AuthStep) -> Comparable {
        let mut auth = AuthClient::new(self.service());
        let mut maintenance = MaintenanceClient::new(self.service());
        match step {
            AuthStep::RoleAdd(name) => {
                let request = AuthRoleAddRequest { name: name.into() };
                comparable(auth.role_add(request).await, |it| &mut it.header)
            }
            AuthStep::RoleGet(role) => {
                let request = AuthRoleGetRequest { role: role.into() };
                comparable(auth.role_get(request).await, |it| &mut it.header)
            }
            AuthStep::RoleList => {
                comparable(auth.role_list(AuthRoleListRequest {}).await, |it| &mut it.header)
            }
            AuthStep::RoleDelete(role) => {
                let request = AuthRoleDeleteRequest { role: role.into() };
                comparable(auth.role_delete(request).await, |it| &mut it.header)
            }
            AuthStep::Grant { role, permission: perm } => {
                let request = AuthRoleGrantPermissionRequest { name: role.into(), perm };
                comparable(auth.role_grant_permission(request).await, |it| &mut it.header)
            }
            AuthStep::Revoke { role, permission } => {
                let Permission { key, range_end, .. } = permission;
                let request = AuthRoleRevokePermissionRequest { role: role.into(), key, range_end };
                comparable(auth.role_revoke_permission(request).await, |it| &mut it.header)
            }
            // Of these only the refusals are compared.
            AuthStep::MemberList => {
                let request = MemberListRequest { linearizable: true };
                refusal(ClusterClient::new(self.service()).member_list(request).await)
            }
            AuthStep::MemberStatus => refusal(maintenance.status(StatusRequest {}).await),
            AuthStep::AlarmList => refusal(maintenance.alarm(AlarmRequest::default()).await),
            AuthStep::HashKv => refusal(maintenance.hash_kv(HashKvRequest::default()).await),
            step => panic!("not handled: {step:?}"),
        }
    }

    async fn try_watch(&self, create: WatchCreateRequest) -> Comparable {
        let request_union = Some(RequestUnion::CreateRequest(create));
        let requests = tokio_stream::once(WatchRequest { request_union });
        // The stream of requests stays open.
        let requests = requests.chain(tokio_stream::pending());
        let mut responses = match WatchClient::new(self.service()).watch(requests).await {
            Ok(responses) => responses.into_inner(),
            Err(status) => return refusal::<()>(Err(status)),
        };
        match responses.message().await {
            Ok(Some(mut response)) => {
                let revision = clear(&mut response.header);
                Ok((revision, format!("{response:?}")))
            }
            Ok(None) => Ok((0, "the end".into())),
            Err(status) => refusal::<()>(Err(status)),
        }
    }
}

fn refusal<T>(response: Result<T, Status>) -> Comparable {
    match response {
        Ok(_) => Ok((0, String::new())),
        Err(status) => Err((status.code() as i32, status.message().to_owned())),
    }
}
