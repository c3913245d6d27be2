//! From the credentials of a request to a user, and from there to a decision.
//!
//! A member may lag behind: its users, roles and tokens may be older than those that the client
//! has seen. So no request is refused before the member has caught up.

use std::sync::atomic::Ordering;

use quorate_kv::{
    AnyTable, AuthState, Command, CommandIssuer, Issuer, Kv, KvCommandReply, KvError,
};
use tokio::time::Instant;

use super::tokens::TokenState;
use super::{RequiredRight, SimpleTokens, TokenHold, TokenProvider, audit, jwt};
use crate::access::ClientIdentity;
use crate::context::ServiceContext;
use crate::status::ServiceError;

/// A user that a server has identified.
#[derive(Clone, Debug)]
pub(crate) struct UserIdentity {
    pub(crate) name: String,
    /// The auth revision that the identity is as old as.
    pub(crate) revision: u64,
    /// Whether a retry identifies the user at the current revision. The revision of a signed
    /// token never changes.
    pub(crate) is_renewable: bool,
    /// Keeps the token valid.
    _hold: Option<TokenHold>,
    /// When the token expires, if it says so.
    expires: Option<Instant>,
}

impl UserIdentity {
    pub(crate) fn issuer(&self) -> Issuer<'_> {
        Issuer::User { name: &self.name, revision: self.revision }
    }

    fn command_issuer(&self) -> CommandIssuer {
        CommandIssuer::User { name: self.name.clone(), revision: self.revision }
    }
}

impl ServiceContext {
    /// The user of this client, as this member knows it. `None` if authentication is not
    /// enabled, or the client has no credentials.
    ///
    /// It takes the lock of the store only if users or roles have changed since the token was used
    /// last, and never blocks a thread.
    pub(crate) async fn identify(
        &self,
        client: &ClientIdentity,
    ) -> Result<Option<UserIdentity>, ServiceError> {
        // Read first: a change after this makes the identity too old, and not too new.
        let version = self.store.auth_version();
        if !version.enabled {
            return Ok(None);
        }
        let Some(token) = client.credentials.token() else {
            let name = client.credentials.common_name();
            let name = name.filter(|_| self.auth.trusts_certificates);
            return Ok(name.map(|name| UserIdentity {
                name: name.to_owned(),
                revision: version.revision,
                is_renewable: true,
                _hold: None,
                expires: None,
            }));
        };
        let identity = match &self.auth.tokens {
            TokenProvider::Simple(tokens) => {
                return self.identify_simple(tokens, token).await.map(Some);
            }
            TokenProvider::Jwt(tokens) => tokens.check(token).map(|claims| UserIdentity {
                name: claims.user,
                revision: claims.revision,
                is_renewable: false,
                _hold: None,
                // It is valid during the last second.
                expires: Some(Instant::now() + jwt::time_until(claims.expires + 1)),
            }),
        };
        identity.map(Some).ok_or(ServiceError::Kv(KvError::InvalidAuthToken))
    }

    async fn identify_simple(
        &self,
        tokens: &SimpleTokens,
        token: &str,
    ) -> Result<UserIdentity, ServiceError> {
        tokens.learn(&self.store, self.has_caught_up());
        for _ in 0..ATTEMPTS_MAX {
            let revision = self.store.auth_version().revision;
            match tokens.look_up(token, revision) {
                TokenState::Valid(name, hold) => {
                    return Ok(UserIdentity {
                        name,
                        revision,
                        is_renewable: true,
                        _hold: Some(hold),
                        expires: None,
                    });
                }
                TokenState::Invalid => break,
                TokenState::Unconfirmed => {
                    tokens.confirm(token, self.store.read_when_free().await.auth());
                }
            }
        }
        Err(ServiceError::Kv(KvError::InvalidAuthToken))
    }

    /// Runs `attempt` for the user of this client. When it is refused, this member catches up,
    /// and it runs again: the refusal may be due to old users, roles or tokens.
    pub(crate) async fn with_identity<R>(
        &self,
        client: &ClientIdentity,
        mut attempt: impl FnMut(&Kv<AnyTable>, Issuer<'_>) -> Result<R, ServiceError>,
    ) -> Result<R, ServiceError> {
        if !self.store.auth_version().enabled {
            let result = attempt(&*self.store.read_when_free().await, Issuer::Anonymous);
            // Authentication may be enabled by now.
            if !matches!(&result, Err(ServiceError::Kv(error)) if is_auth_error(*error)) {
                return result;
            }
        }
        // In memory of its own: most calls never need it, and are moved several times.
        let tried = self.try_with_identity(client, |kv, identity| {
            attempt(kv, identity.map_or(Issuer::Anonymous, UserIdentity::issuer))
        });
        Box::pin(tried).await
    }

    async fn try_with_identity<R>(
        &self,
        client: &ClientIdentity,
        mut attempt: impl FnMut(&Kv<AnyTable>, Option<&UserIdentity>) -> Result<R, ServiceError>,
    ) -> Result<R, ServiceError> {
        let mut has_caught_up = false;
        let mut attempts_left = ATTEMPTS_MAX;
        loop {
            let identity = self.identify(client).await;
            let is_renewable =
                matches!(&identity, Ok(None)) || is_renewable(identity.as_ref().ok());
            let result = match identity {
                Ok(identity) => {
                    if let Some(identity) = &identity {
                        audit::note(|entry| entry.user = Some(identity.name.clone()));
                    }
                    attempt(&*self.store.read_when_free().await, identity.as_ref())
                }
                Err(error) => Err(error),
            };
            let Err(ServiceError::Kv(error)) = result else { return result };
            if !is_auth_error(error) {
                return result;
            }
            attempts_left -= 1;
            if !has_caught_up {
                has_caught_up = true;
                if self.catch_up().await.is_ok() {
                    continue;
                }
            } else if error == KvError::AuthRevisionOld && is_renewable && attempts_left > 0 {
                continue;
            }
            self.auth.denied.fetch_add(1, Ordering::Relaxed);
            return result;
        }
    }

    /// Runs a command for a client: it is checked here, and again when it is applied.
    pub(crate) async fn run_for(
        &self,
        client: &ClientIdentity,
        command: Command,
    ) -> Result<KvCommandReply, ServiceError> {
        if !self.store.auth_version().enabled {
            let reply = self.run(&command).await;
            let is_refused = matches!(reply, Err(ServiceError::Kv(KvError::UserNameEmpty)));
            // Authentication may be enabled by now.
            if !is_refused || !self.store.auth_version().enabled {
                return reply;
            }
        }
        Box::pin(self.run_for_user(client, command)).await
    }

    /// The same with authentication.
    async fn run_for_user(
        &self,
        client: &ClientIdentity,
        command: Command,
    ) -> Result<KvCommandReply, ServiceError> {
        let mut attempts_left = ATTEMPTS_MAX;
        loop {
            let mut is_renewable = true;
            let issued = self.try_with_identity(client, |kv, identity| {
                let command = command.clone();
                let issued = match identity {
                    Some(identity) => command.issued_by(identity.command_issuer()),
                    None => command,
                };
                is_renewable = identity.is_none_or(|identity| identity.is_renewable);
                kv.check_command(&issued)?;
                Ok(issued)
            });
            let reply = self.run(&issued.await?).await;
            attempts_left -= 1;
            match reply {
                // Users or roles changed while the command was on its way.
                Err(ServiceError::Kv(KvError::AuthRevisionOld))
                    if is_renewable && attempts_left > 0 => {}
                reply => return reply,
            }
        }
    }

    /// Whether this client may make a call that does not depend on keys.
    pub(crate) async fn check_right(
        &self,
        client: &ClientIdentity,
        right: RequiredRight,
    ) -> Result<(), ServiceError> {
        let check: fn(&AuthState, Issuer<'_>) -> Result<(), KvError> = match right {
            RequiredRight::Nothing | RequiredRight::OfRequest => return Ok(()),
            RequiredRight::AnyUser => AuthState::check_known,
            RequiredRight::Root => AuthState::check_root,
        };
        if !self.store.auth_version().enabled {
            return Ok(());
        }
        self.with_identity(client, |kv, issuer| Ok(check(kv.auth(), issuer)?)).await
    }

    /// Waits until the client of a stream no longer has the right that the stream needs.
    pub(crate) async fn access_lost(
        &self,
        client: &ClientIdentity,
        right: RequiredRight,
    ) -> ServiceError {
        let mut changes = self.auth.changes.subscribe();
        let mut hold = self.hold_token(client).await;
        loop {
            let expired = token_expired(hold.as_ref());
            tokio::select! {
                changed = changes.changed() => if changed.is_err() {
                    std::future::pending::<()>().await;
                },
                () = expired => {}
            }
            if let Err(error) = self.check_right(client, right).await {
                return error;
            }
            hold = self.hold_token(client).await;
        }
    }

    /// The identity of a client, which a stream keeps so that its token does not expire.
    pub(crate) async fn hold_token(&self, client: &ClientIdentity) -> Option<UserIdentity> {
        self.identify(client).await.ok().flatten()
    }
}

fn is_renewable(identity: Option<&Option<UserIdentity>>) -> bool {
    identity.and_then(Option::as_ref).is_some_and(|identity| identity.is_renewable)
}

/// Waits until the token of this identity expires by itself; forever, if it does not.
pub(crate) async fn token_expired(identity: Option<&UserIdentity>) {
    match identity.and_then(|identity| identity.expires) {
        Some(expires) => tokio::time::sleep_until(expires).await,
        None => std::future::pending().await,
    }
}

/// Refusals that depend on users, roles and tokens.
pub(crate) fn is_auth_error(error: KvError) -> bool {
    matches!(
        error,
        KvError::UserNameEmpty
            | KvError::UserNotFound
            | KvError::PermissionDenied
            | KvError::InvalidAuthToken
            | KvError::AuthRevisionOld
            | KvError::AuthNotEnabled
    )
}

/// How often a command is proposed again because users or roles change all the time.
const ATTEMPTS_MAX: u32 = 16;
