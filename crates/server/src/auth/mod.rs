//! Authentication: who a client is, and what it may do. Users and roles are replicated
//! (`quorate_kv::AuthState`); this module has what each server keeps beside them: tokens,
//! passwords being checked, failed attempts, and the audit log.

pub(crate) mod audit;
mod config;
mod identity;
mod jwt;
mod login_limits;
mod monitor;
mod password;
mod rights;
mod tokens;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::watch;

pub use config::{AuthConfig, AuthConfigError, AuthTokenConfig, JwtConfig, SignMethod};
pub(crate) use identity::{UserIdentity, token_expired};
pub(crate) use jwt::JwtTokens;
pub(crate) use jwt::now as unix_seconds;
pub(crate) use login_limits::LoginLimits;
pub(crate) use monitor::monitor;
pub(crate) use password::{PASSWORD_BYTES_MAX, Password, Passwords};
pub(crate) use rights::RequiredRight;
pub(crate) use tokens::SimpleTokens;

/// What a server keeps for authentication, beside the replicated users and roles.
pub(crate) struct Auth {
    pub(crate) tokens: TokenProvider,
    pub(crate) passwords: Passwords,
    pub(crate) login_limits: Arc<LoginLimits>,
    /// Counts changes of users, roles and tokens. Streams check their rights again when it
    /// changes.
    pub(crate) changes: watch::Sender<u64>,
    pub(crate) failed_logins: AtomicU64,
    pub(crate) denied: AtomicU64,
    /// Whether the common name of a client's certificate is its user, as with
    /// `--client-cert-auth`.
    pub(crate) trusts_certificates: bool,
}

/// How tokens are made and checked.
pub(crate) enum TokenProvider {
    Simple(SimpleTokens),
    Jwt(Box<JwtTokens>),
}

impl Auth {
    /// Reads the keys of tokens.
    pub(crate) fn new(config: &AuthConfig) -> Result<Self, AuthConfigError> {
        let tokens = match &config.token {
            AuthTokenConfig::Simple => TokenProvider::Simple(SimpleTokens::new(config.token_ttl)),
            AuthTokenConfig::Jwt(jwt) => TokenProvider::Jwt(Box::new(JwtTokens::load(jwt)?)),
        };
        Ok(Self::with_tokens(tokens, config.bcrypt_cost))
    }

    fn with_tokens(tokens: TokenProvider, bcrypt_cost: u32) -> Self {
        Self {
            tokens,
            passwords: Passwords::new(bcrypt_cost),
            login_limits: Arc::default(),
            changes: watch::Sender::new(0),
            failed_logins: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            trusts_certificates: true,
        }
    }
}

impl Default for Auth {
    fn default() -> Self {
        let config = AuthConfig::default();
        let tokens = TokenProvider::Simple(SimpleTokens::new(config.token_ttl));
        Self::with_tokens(tokens, config.bcrypt_cost)
    }
}

/// A token that an open stream keeps from expiring.
pub(crate) type TokenHold = Arc<()>;

/// As etcd's.
pub(crate) const TOKEN_TTL_DEFAULT: Duration = Duration::from_secs(300);
