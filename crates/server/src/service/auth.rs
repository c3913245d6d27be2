//! etcd's service Auth: users, roles, and tokens for passwords.
//!
//! Changes go through the log. Passwords are hashed before that, so that neither the log nor any
//! member but this one ever has them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quorate_kv::{
    AnyTable, AuthCommand, Command, Issuer, KeyRange, Kv, KvError, Permission, PermissionMode,
    ROOT, TokenRequest,
};
use quorate_proto::authpb;
use quorate_proto::etcdserverpb::auth_server::Auth;
use quorate_proto::etcdserverpb::{
    AuthDisableRequest, AuthDisableResponse, AuthEnableRequest, AuthEnableResponse,
    AuthRoleAddRequest, AuthRoleAddResponse, AuthRoleDeleteRequest, AuthRoleDeleteResponse,
    AuthRoleGetRequest, AuthRoleGetResponse, AuthRoleGrantPermissionRequest,
    AuthRoleGrantPermissionResponse, AuthRoleListRequest, AuthRoleListResponse,
    AuthRoleRevokePermissionRequest, AuthRoleRevokePermissionResponse, AuthStatusRequest,
    AuthStatusResponse, AuthUserAddRequest, AuthUserAddResponse, AuthUserChangePasswordRequest,
    AuthUserChangePasswordResponse, AuthUserDeleteRequest, AuthUserDeleteResponse,
    AuthUserGetRequest, AuthUserGetResponse, AuthUserGrantRoleRequest, AuthUserGrantRoleResponse,
    AuthUserListRequest, AuthUserListResponse, AuthUserRevokeRoleRequest,
    AuthUserRevokeRoleResponse, AuthenticateRequest, AuthenticateResponse, ResponseHeader,
};
use tonic::{Request, Response, Status, async_trait};

use crate::access::{ClientAction, ClientIdentity};
use crate::auth::{PASSWORD_BYTES_MAX, Password, SimpleTokens, TokenProvider, audit, unix_seconds};
use crate::context::ServiceContext;
use crate::status::ServiceError;

pub(crate) struct AuthService {
    context: ServiceContext,
}

impl AuthService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }

    /// Runs a change, and returns the header of its response.
    async fn change<T>(
        &self,
        request: Request<T>,
        command: impl FnOnce(T) -> AuthCommand,
    ) -> Result<Option<ResponseHeader>, ServiceError> {
        let client = self.context.admit(&request, &ClientAction::AuthChange).await?;
        self.run(&client, command(request.into_inner())).await
    }

    async fn run(
        &self,
        client: &ClientIdentity,
        command: AuthCommand,
    ) -> Result<Option<ResponseHeader>, ServiceError> {
        let reply = self.context.run_for(client, Command::Auth(command)).await?;
        Ok(Some(self.context.header(reply.revision)))
    }

    /// Reads users and roles after everything that has happened before.
    async fn read<T, R>(
        &self,
        request: &Request<T>,
        read: impl Fn(&Kv<AnyTable>, Issuer<'_>) -> Result<R, KvError>,
    ) -> Result<(Option<ResponseHeader>, R), ServiceError> {
        let client = self.context.admit(request, &ClientAction::AuthRead);
        let client = client.await?;
        self.context.catch_up().await?;
        let found = self.context.with_identity(&client, |kv, issuer| Ok(read(kv, issuer)?)).await?;
        let revision = self.context.store.read_when_free().await.revision();
        Ok((Some(self.context.header(revision)), found))
    }

    /// A client that may change users, before its request is looked at: hashing a password is
    /// expensive.
    async fn admit_root<T>(&self, request: &Request<T>) -> Result<ClientIdentity, ServiceError> {
        let client = self.context.admit(request, &ClientAction::AuthChange);
        let client = client.await?;
        let check = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| Ok(kv.auth().check_root(issuer)?);
        self.context.with_identity(&client, check).await?;
        Ok(client)
    }

    /// A token for a user with the right password.
    async fn token(
        &self,
        client: &ClientIdentity,
        name: &str,
        password: Password,
    ) -> Result<String, ServiceError> {
        let context = &self.context;
        // Nobody has such a name or password, and it is not kept while the attempt waits.
        if name.len() > NAME_BYTES_MAX || password.len() > PASSWORD_BYTES_MAX {
            return Err(KvError::AuthFailed.into());
        }
        context.catch_up().await?;
        if !context.store.auth_version().enabled {
            return Err(KvError::AuthNotEnabled.into());
        }
        let (auth, address) = (&context.auth, client.peer_address.map(|address| address.ip()));
        let attempt = auth.login_limits.begin(name, address).await;
        let attempt = Arc::new(attempt.map_err(|_| ServiceError::TooManyLogins)?);
        for _ in 0..ATTEMPTS_MAX {
            let (expected, revision) = {
                let kv = context.store.read_when_free().await;
                let user = kv.auth().user(name);
                (user.and_then(|user| user.password()).cloned(), kv.auth().revision())
            };
            let checked = auth.passwords.check(password.clone(), expected, Arc::clone(&attempt));
            if !checked.await? {
                auth.failed_logins.fetch_add(1, Ordering::Relaxed);
                log_failure(name, client.peer_address);
                return Err(KvError::AuthFailed.into());
            }
            attempt.succeeded();
            match self.issue(name, revision).await {
                // Users or roles have changed meanwhile, perhaps this password.
                Err(ServiceError::Kv(KvError::AuthRevisionOld)) => {}
                token => return token,
            }
        }
        Err(KvError::AuthRevisionOld.into())
    }

    /// A token for a user whose password was checked at this auth revision.
    async fn issue(&self, name: &str, checked_at: u64) -> Result<String, ServiceError> {
        let context = &self.context;
        match &context.auth.tokens {
            TokenProvider::Jwt(tokens) => {
                tokens.sign(name, checked_at).ok_or(ServiceError::CannotSignTokens)
            }
            TokenProvider::Simple(_) => {
                let token = SimpleTokens::generate().ok_or(ServiceError::UnexpectedReply)?;
                let (user, issued_at) = (name.to_owned(), unix_seconds());
                let request = TokenRequest { user, digest: token.digest, checked_at, issued_at };
                context.run(&Command::Auth(AuthCommand::IssueToken(request))).await?;
                Ok(token.text)
            }
        }
    }
}

fn log_failure(user: &str, client: Option<SocketAddr>) {
    let client = client.map(|client| client.to_string()).unwrap_or_default();
    tracing::warn!(user, client, "invalid authentication was requested");
}

#[async_trait]
impl Auth for AuthService {
    async fn auth_enable(
        &self,
        request: Request<AuthEnableRequest>,
    ) -> Result<Response<AuthEnableResponse>, Status> {
        let header = self.change(request, |_| AuthCommand::Enable).await?;
        Ok(Response::new(AuthEnableResponse { header }))
    }

    async fn auth_disable(
        &self,
        request: Request<AuthDisableRequest>,
    ) -> Result<Response<AuthDisableResponse>, Status> {
        let header = self.change(request, |_| AuthCommand::Disable).await?;
        Ok(Response::new(AuthDisableResponse { header }))
    }

    async fn auth_status(
        &self,
        request: Request<AuthStatusRequest>,
    ) -> Result<Response<AuthStatusResponse>, Status> {
        // As in etcd, anyone may ask, to find out whether a user is needed.
        let status =
            |kv: &Kv<AnyTable>, _: Issuer<'_>| Ok((kv.auth().is_enabled(), kv.auth().revision()));
        let (header, (enabled, auth_revision)) = self.read(&request, status).await?;
        Ok(Response::new(AuthStatusResponse { header, enabled, auth_revision }))
    }

    async fn authenticate(
        &self,
        request: Request<AuthenticateRequest>,
    ) -> Result<Response<AuthenticateResponse>, Status> {
        let mut request = request;
        let password = Password::new(std::mem::take(&mut request.get_mut().password));
        let client = self.context.admit(&request, &ClientAction::Authenticate).await?;
        let AuthenticateRequest { name, .. } = request.into_inner();
        audit::note(|entry| entry.user = Some(name.chars().take(NAME_BYTES_MAX).collect()));
        let token = self.token(&client, &name, password).await?;
        let revision = self.context.store.read_when_free().await.revision();
        let header = Some(self.context.header(revision));
        Ok(Response::new(AuthenticateResponse { header, token }))
    }

    async fn user_add(
        &self,
        request: Request<AuthUserAddRequest>,
    ) -> Result<Response<AuthUserAddResponse>, Status> {
        let mut request = request;
        let password = Password::new(std::mem::take(&mut request.get_mut().password));
        let client = self.admit_root(&request).await?;
        let AuthUserAddRequest { name, options, .. } = request.into_inner();
        if name.is_empty() {
            return Err(ServiceError::Kv(KvError::UserNameEmpty).into());
        }
        let no_password = options.is_some_and(|options| options.no_password);
        let password = match no_password {
            true => None,
            false => Some(self.context.auth.passwords.hash(password).await?),
        };
        let header = self.run(&client, AuthCommand::UserAdd { name, password }).await?;
        Ok(Response::new(AuthUserAddResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<AuthUserGetRequest>,
    ) -> Result<Response<AuthUserGetResponse>, Status> {
        let wanted = request.get_ref().name.clone();
        let roles = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| {
            // Users may see their own roles.
            match issuer {
                Issuer::User { name, .. } if name == wanted => kv.auth().check_known(issuer)?,
                _ => kv.auth().check_root(issuer)?,
            }
            let user = kv.auth().user(&wanted).ok_or(KvError::UserNotFound)?;
            Ok(user.roles().map(str::to_owned).collect())
        };
        let (header, roles) = self.read(&request, roles).await?;
        Ok(Response::new(AuthUserGetResponse { header, roles }))
    }

    async fn user_list(
        &self,
        request: Request<AuthUserListRequest>,
    ) -> Result<Response<AuthUserListResponse>, Status> {
        let users = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| {
            kv.auth().check_root(issuer)?;
            Ok(kv.auth().users().map(str::to_owned).collect())
        };
        let (header, users) = self.read(&request, users).await?;
        Ok(Response::new(AuthUserListResponse { header, users }))
    }

    async fn user_delete(
        &self,
        request: Request<AuthUserDeleteRequest>,
    ) -> Result<Response<AuthUserDeleteResponse>, Status> {
        let header = self.change(request, |it| AuthCommand::UserDelete(it.name)).await?;
        Ok(Response::new(AuthUserDeleteResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<AuthUserChangePasswordRequest>,
    ) -> Result<Response<AuthUserChangePasswordResponse>, Status> {
        let mut request = request;
        let password = Password::new(std::mem::take(&mut request.get_mut().password));
        let client = self.admit_root(&request).await?;
        let AuthUserChangePasswordRequest { name, .. } = request.into_inner();
        let password = self.context.auth.passwords.hash(password).await?;
        let command = AuthCommand::UserChangePassword { name, password };
        let header = self.run(&client, command).await?;
        Ok(Response::new(AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<AuthUserGrantRoleRequest>,
    ) -> Result<Response<AuthUserGrantRoleResponse>, Status> {
        let command =
            |AuthUserGrantRoleRequest { user, role }| AuthCommand::UserGrantRole { user, role };
        let header = self.change(request, command).await?;
        Ok(Response::new(AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<AuthUserRevokeRoleRequest>,
    ) -> Result<Response<AuthUserRevokeRoleResponse>, Status> {
        let command = |AuthUserRevokeRoleRequest { name, role }| AuthCommand::UserRevokeRole {
            user: name,
            role,
        };
        let header = self.change(request, command).await?;
        Ok(Response::new(AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        &self,
        request: Request<AuthRoleAddRequest>,
    ) -> Result<Response<AuthRoleAddResponse>, Status> {
        let header = self.change(request, |it| AuthCommand::RoleAdd(it.name)).await?;
        Ok(Response::new(AuthRoleAddResponse { header }))
    }

    async fn role_get(
        &self,
        request: Request<AuthRoleGetRequest>,
    ) -> Result<Response<AuthRoleGetResponse>, Status> {
        let wanted = request.get_ref().role.clone();
        let permissions = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| {
            // Users may see their own roles.
            let user = match issuer {
                Issuer::User { name, .. } => kv.auth().user(name),
                Issuer::Anonymous | Issuer::Member => None,
            };
            match user.is_some_and(|user| user.has_role(&wanted)) {
                true => kv.auth().check_known(issuer)?,
                false => kv.auth().check_root(issuer)?,
            }
            let role = kv.auth().role(&wanted).ok_or(KvError::RoleNotFound)?;
            if wanted == ROOT {
                return Ok(vec![everything()]);
            }
            Ok(role.permissions().iter().map(permission_message).collect())
        };
        let (header, perm) = self.read(&request, permissions).await?;
        Ok(Response::new(AuthRoleGetResponse { header, perm }))
    }

    async fn role_list(
        &self,
        request: Request<AuthRoleListRequest>,
    ) -> Result<Response<AuthRoleListResponse>, Status> {
        let roles = |kv: &Kv<AnyTable>, issuer: Issuer<'_>| {
            kv.auth().check_root(issuer)?;
            Ok(kv.auth().roles().map(str::to_owned).collect())
        };
        let (header, roles) = self.read(&request, roles).await?;
        Ok(Response::new(AuthRoleListResponse { header, roles }))
    }

    async fn role_delete(
        &self,
        request: Request<AuthRoleDeleteRequest>,
    ) -> Result<Response<AuthRoleDeleteResponse>, Status> {
        let header = self.change(request, |it| AuthCommand::RoleDelete(it.role)).await?;
        Ok(Response::new(AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<AuthRoleGrantPermissionResponse>, Status> {
        // As in etcd, the right is checked before the permission.
        let client = self.admit_root(&request).await?;
        let AuthRoleGrantPermissionRequest { name: role, perm } = request.into_inner();
        let permission = perm.ok_or(ServiceError::Kv(KvError::PermissionNotGiven))?;
        let permission = permission_of(permission).map_err(ServiceError::Kv)?;
        let command = AuthCommand::RoleGrantPermission { role, permission };
        let header = self.run(&client, command).await?;
        Ok(Response::new(AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<AuthRoleRevokePermissionResponse>, Status> {
        let command = |AuthRoleRevokePermissionRequest { role, key, range_end }| {
            AuthCommand::RoleRevokePermission { role, keys: KeyRange { key, range_end } }
        };
        let header = self.change(request, command).await?;
        Ok(Response::new(AuthRoleRevokePermissionResponse { header }))
    }
}

pub(crate) fn permission_of(message: authpb::Permission) -> Result<Permission, KvError> {
    let mode = match authpb::permission::Type::try_from(message.perm_type) {
        Ok(authpb::permission::Type::Read) => PermissionMode::Read,
        Ok(authpb::permission::Type::Write) => PermissionMode::Write,
        Ok(authpb::permission::Type::Readwrite) => PermissionMode::ReadWrite,
        Err(_) => return Err(KvError::InvalidAuthManagement),
    };
    let keys = KeyRange { key: message.key, range_end: message.range_end };
    Ok(Permission { mode, keys })
}

fn permission_message(permission: &Permission) -> authpb::Permission {
    let mode = match permission.mode {
        PermissionMode::Read => authpb::permission::Type::Read,
        PermissionMode::Write => authpb::permission::Type::Write,
        PermissionMode::ReadWrite => authpb::permission::Type::Readwrite,
    };
    let KeyRange { key, range_end } = permission.keys.clone();
    authpb::Permission { perm_type: mode as i32, key, range_end }
}

/// What etcd shows as the permission of the role `root`.
fn everything() -> authpb::Permission {
    let mode = authpb::permission::Type::Readwrite as i32;
    authpb::Permission { perm_type: mode, key: "".into(), range_end: "\0".into() }
}

/// How often a password is checked again because users or roles change all the time.
const ATTEMPTS_MAX: u32 = 8;

/// Of a user that authenticates.
const NAME_BYTES_MAX: usize = 1_024;
