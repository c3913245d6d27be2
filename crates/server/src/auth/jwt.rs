//! Tokens that are signed JSON web tokens with etcd's claims: user name, auth revision, expiry.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::{
    Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode, errors,
};
use serde_json::{Value, json};

use super::config::{AuthConfigError, JwtConfig, SignMethod};

/// Signs and checks tokens.
pub(crate) struct JwtTokens {
    algorithm: Algorithm,
    /// `None` if tokens can only be checked.
    signing: Option<EncodingKey>,
    checking: DecodingKey,
    ttl: Duration,
}

/// What a valid token says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JwtClaims {
    pub(crate) user: String,
    /// The auth revision at which the user authenticated.
    pub(crate) revision: u64,
    /// When the token expires, in seconds since 1970.
    pub(crate) expires: u64,
}

impl JwtTokens {
    pub(crate) fn load(config: &JwtConfig) -> Result<Self, AuthConfigError> {
        let algorithm = algorithm(config.sign_method);
        let private = config.private_key.as_deref().map(read).transpose()?;
        let public = config.public_key.as_deref().map(read).transpose()?;
        if is_symmetric(algorithm) {
            let secret = private.filter(|secret| !secret.is_empty());
            let secret = secret.ok_or(AuthConfigError::MissingKey { option: "priv-key" })?;
            let signing = Some(EncodingKey::from_secret(&secret));
            let checking = DecodingKey::from_secret(&secret);
            return Ok(Self { algorithm, signing, checking, ttl: config.ttl });
        }
        let path = config.public_key.as_deref().unwrap_or(Path::new(""));
        let public = public.ok_or(AuthConfigError::MissingKey { option: "pub-key" })?;
        let checking = key(path, &public, algorithm, PemParser::PUBLIC)?;
        let signing = match (&config.private_key, private) {
            (Some(path), Some(private)) => {
                Some(key(path, &private, algorithm, PemParser::PRIVATE)?)
            }
            _ => None,
        };
        let tokens = Self { algorithm, signing, checking, ttl: config.ttl };
        // Tokens that this member issues must be valid here.
        match tokens.sign("root", 1) {
            Some(token) if tokens.check(&token).is_none() => Err(AuthConfigError::KeyMismatch),
            _ => Ok(tokens),
        }
    }

    /// Tokens that are signed and checked with one secret.
    pub(crate) fn with_secret(secret: &[u8]) -> Self {
        Self {
            algorithm: Algorithm::HS256,
            signing: Some(EncodingKey::from_secret(secret)),
            checking: DecodingKey::from_secret(secret),
            ttl: Duration::from_secs(600),
        }
    }

    /// A token for this user; `None` if there is no key to sign it with.
    pub(crate) fn sign(&self, user: &str, revision: u64) -> Option<String> {
        let expires = now() + self.ttl.as_secs().max(1);
        let claims = json!({ "username": user, "revision": revision, "exp": expires });
        encode(&Header::new(self.algorithm), &claims, self.signing.as_ref()?).ok()
    }

    /// What a valid token says. Only the configured algorithm is accepted, whatever the token
    /// names.
    pub(crate) fn check(&self, token: &str) -> Option<JwtClaims> {
        if token.len() > TOKEN_BYTES_MAX {
            return None;
        }
        let mut validation = Validation::new(self.algorithm);
        validation.leeway = 0;
        validation.validate_aud = false;
        validation.validate_nbf = true;
        let claims = decode::<Value>(token, &self.checking, &validation).ok()?.claims;
        let user = claims.get("username")?.as_str()?.to_owned();
        let revision = claims.get("revision")?;
        // Numbers may be written as floating point, as other programs that sign tokens do.
        let revision = revision.as_u64().or_else(|| revision.as_f64().map(|it| it as u64))?;
        let expires = claims.get("exp")?;
        let expires = expires.as_u64().or_else(|| expires.as_f64().map(|it| it as u64))?;
        // An absurd time would overflow.
        let expires = expires.min(EXPIRES_MAX);
        Some(JwtClaims { user, revision, expires })
    }
}

/// How long until this time in seconds since 1970.
pub(crate) fn time_until(seconds: u64) -> Duration {
    Duration::from_secs(seconds.saturating_sub(now()))
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn read(path: &Path) -> Result<Vec<u8>, AuthConfigError> {
    std::fs::read(path)
        .map_err(|error| AuthConfigError::Key { path: path.to_owned(), reason: error.to_string() })
}

type ParsePem<K> = fn(&[u8]) -> Result<K, errors::Error>;

/// The functions that read keys of each kind.
struct PemParser<K> {
    rsa: ParsePem<K>,
    ec: ParsePem<K>,
    ed: ParsePem<K>,
}

impl PemParser<EncodingKey> {
    const PRIVATE: Self = Self {
        rsa: EncodingKey::from_rsa_pem,
        ec: EncodingKey::from_ec_pem,
        ed: EncodingKey::from_ed_pem,
    };
}

impl PemParser<DecodingKey> {
    const PUBLIC: Self = Self {
        rsa: DecodingKey::from_rsa_pem,
        ec: DecodingKey::from_ec_pem,
        ed: DecodingKey::from_ed_pem,
    };
}

fn key<K>(
    path: &Path,
    pem: &[u8],
    algorithm: Algorithm,
    parser: PemParser<K>,
) -> Result<K, AuthConfigError> {
    let parse = match algorithm {
        Algorithm::ES256 | Algorithm::ES384 => parser.ec,
        Algorithm::EdDSA => parser.ed,
        _ => parser.rsa,
    };
    parse(pem).map_err(|error| AuthConfigError::Key {
        path: path.to_owned(),
        reason: format!("not a key for {algorithm:?}: {error}"),
    })
}

fn is_symmetric(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512)
}

fn algorithm(method: SignMethod) -> Algorithm {
    match method {
        SignMethod::Rs256 => Algorithm::RS256,
        SignMethod::Rs384 => Algorithm::RS384,
        SignMethod::Rs512 => Algorithm::RS512,
        SignMethod::Ps256 => Algorithm::PS256,
        SignMethod::Ps384 => Algorithm::PS384,
        SignMethod::Ps512 => Algorithm::PS512,
        SignMethod::Es256 => Algorithm::ES256,
        SignMethod::Es384 => Algorithm::ES384,
        SignMethod::EdDsa => Algorithm::EdDSA,
        SignMethod::Hs256 => Algorithm::HS256,
        SignMethod::Hs384 => Algorithm::HS384,
        SignMethod::Hs512 => Algorithm::HS512,
    }
}

/// The year 2600.
const EXPIRES_MAX: u64 = 19_880_899_200;
/// Longer texts are not parsed.
const TOKEN_BYTES_MAX: usize = 8 << 10;

#[cfg(test)]
mod tests;
