//! `--auth-token`, `--auth-token-ttl` and `--bcrypt-cost`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::TOKEN_TTL_DEFAULT;

/// The settings of authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthConfig {
    pub token: AuthTokenConfig,
    /// How long a simple token is valid after its last use.
    pub token_ttl: Duration,
    /// Each increment doubles the work of hashing a password.
    pub bcrypt_cost: u32,
    /// Where the audit log is written; `None` for none.
    pub audit_log: Option<PathBuf>,
}

/// What tokens are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AuthTokenConfig {
    /// Random texts that all members know.
    Simple,
    /// Signed JSON web tokens.
    Jwt(JwtConfig),
}

/// The keys of JSON web tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwtConfig {
    pub sign_method: SignMethod,
    pub public_key: Option<PathBuf>,
    /// Without it, tokens can be checked, and not issued.
    pub private_key: Option<PathBuf>,
    pub ttl: Duration,
}

/// The algorithm of signatures. Tokens with another one are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignMethod {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    EdDsa,
    Hs256,
    Hs384,
    Hs512,
}

/// Why tokens cannot be used with this configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AuthConfigError {
    /// The value of `--auth-token` is malformed.
    BadOption { option: String, expected: &'static str },
    /// A key cannot be read, or is not one of the algorithm.
    Key { path: PathBuf, reason: String },
    /// A key that the algorithm needs is not given.
    MissingKey { option: &'static str },
    /// A token that was signed with the private key is not valid with the public key.
    KeyMismatch,
}

impl fmt::Display for AuthConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadOption { option, expected } => {
                write!(f, "--auth-token has {option:?}, expected {expected}")
            }
            Self::Key { path, reason } => write!(f, "{}: {reason}", path.display()),
            Self::MissingKey { option } => write!(f, "--auth-token needs {option}=FILE"),
            Self::KeyMismatch => f.write_str("auth: public and private keys don't match"),
        }
    }
}

impl std::error::Error for AuthConfigError {}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            token: AuthTokenConfig::Simple,
            token_ttl: TOKEN_TTL_DEFAULT,
            bcrypt_cost: BCRYPT_COST_DEFAULT,
            audit_log: None,
        }
    }
}

impl AuthTokenConfig {
    /// Parses the value of `--auth-token`: `simple`, or `jwt` with options after commas.
    pub fn parse(
        text: &str,
        duration: impl Fn(&str) -> Option<Duration>,
    ) -> Result<Self, AuthConfigError> {
        let bad = |option: &str, expected| AuthConfigError::BadOption {
            option: option.to_owned(),
            expected,
        };
        let (kind, options) = text.split_once(',').unwrap_or((text, ""));
        match kind {
            "simple" => return Ok(Self::Simple),
            "jwt" => {}
            _ => return Err(bad(kind, "simple or jwt")),
        }
        let (mut sign_method, mut public_key, mut private_key, mut ttl) = (None, None, None, None);
        for option in options.split(',').filter(|option| !option.is_empty()) {
            let pair = option.split_once('=').filter(|(_, value)| !value.contains('='));
            let (name, value) = pair.ok_or_else(|| bad(option, "NAME=VALUE"))?;
            let is_repeated = match name {
                "sign-method" => {
                    let method = SignMethod::parse(value);
                    let method = method.ok_or_else(|| bad(value, SignMethod::EXPECTED))?;
                    sign_method.replace(method).is_some()
                }
                "pub-key" => public_key.replace(PathBuf::from(value)).is_some(),
                "priv-key" => private_key.replace(PathBuf::from(value)).is_some(),
                "ttl" => {
                    let parsed = duration(value).filter(|ttl| !ttl.is_zero());
                    ttl.replace(parsed.ok_or_else(|| bad(value, "a duration such as 10m"))?)
                        .is_some()
                }
                _ => return Err(bad(name, "sign-method, pub-key, priv-key or ttl")),
            };
            if is_repeated {
                return Err(bad(name, "each option once"));
            }
        }
        let sign_method = sign_method.ok_or_else(|| bad(text, "the option sign-method"))?;
        let ttl = ttl.unwrap_or(TOKEN_TTL_DEFAULT);
        Ok(Self::Jwt(JwtConfig { sign_method, public_key, private_key, ttl }))
    }
}

impl SignMethod {
    const EXPECTED: &'static str =
        "RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, EdDSA, HS256, HS384 or HS512";

    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "EdDSA" => Self::EdDsa,
            "HS256" => Self::Hs256,
            "HS384" => Self::Hs384,
            "HS512" => Self::Hs512,
            _ => return None,
        })
    }
}

/// As etcd's.
pub(crate) const BCRYPT_COST_DEFAULT: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AuthTokenConfig, AuthConfigError> {
        let seconds = |text: &str| {
            let number = text.strip_suffix('s')?.parse().ok()?;
            Some(Duration::from_secs(number))
        };
        AuthTokenConfig::parse(text, seconds)
    }

    #[test]
    fn options_are_parsed_as_etcd_parses_them() {
        assert_eq!(parse("simple"), Ok(AuthTokenConfig::Simple));
        let text = "jwt,pub-key=a.pub,priv-key=a.key,sign-method=PS256,ttl=10s";
        let Ok(AuthTokenConfig::Jwt(jwt)) = parse(text) else { panic!("not parsed") };
        assert_eq!(jwt.sign_method, SignMethod::Ps256);
        assert_eq!((jwt.public_key, jwt.private_key), (Some("a.pub".into()), Some("a.key".into())));
        assert_eq!(jwt.ttl, Duration::from_secs(10));
        for wrong in [
            "",
            "none",
            "jwt",
            "jwt,sign-method=none",
            "jwt,sign-method=ES512",
            "jwt,sign-method",
            "jwt,sign-method=RS256,sign-method=RS256",
            "jwt,sign-method=RS256,ttl=0s",
            "jwt,sign-method=RS256,ttl=x",
            "jwt,sign-method=RS256,other=1",
            "jwt,sign-method=RS256,pub-key=a=b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
