//! What is configured: files, versions, cipher suites and allowed names.

use std::fmt;
use std::path::PathBuf;

use rustls::crypto::ring::cipher_suite as suites;
use rustls::{ProtocolVersion, SupportedCipherSuite, SupportedProtocolVersion};

/// The files and rules of one side of TLS connections. All files are PEM; a revocation list may
/// also be DER. They are read again when they change.
///
/// [`TlsSettings::default`] has no files, allows TLS 1.2 and 1.3, and verifies certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsSettings {
    /// The own certificate, followed by intermediate ones if there are any.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// The certificate for connections that this process opens, if it is another one.
    pub dial_certificate: Option<PathBuf>,
    /// The private key of that certificate.
    pub dial_key: Option<PathBuf>,
    /// The authorities that certificates of the other side have to be signed by. With it, an
    /// acceptor requires a certificate of every client. Without it, a connector trusts the
    /// authorities of the system.
    pub trusted_ca: Option<PathBuf>,
    /// An acceptor refuses clients without a certificate. It needs `trusted_ca`, which implies it.
    pub client_cert_auth: bool,
    /// Revoked certificates. Certificates of an authority whose list is not in the file are
    /// accepted.
    pub revocation_list: Option<PathBuf>,
    /// If not empty: the common name of the other side's certificate has to be one of these.
    pub allowed_common_names: Vec<String>,
    /// If not empty: the other side's certificate has to be valid for one of these host names or
    /// IP addresses.
    pub allowed_host_names: Vec<String>,
    /// With allowed names, a process may speak only for the members that its certificate is for.
    /// This turns that rule off: every allowed certificate may speak for every member.
    pub skip_member_binding: bool,
    /// The lowest version to accept.
    pub version_min: TlsVersion,
    /// The highest version to accept; none means the highest there is.
    pub version_max: Option<TlsVersion>,
    /// The suites of TLS 1.2 to accept; empty means all secure ones. Those of TLS 1.3 are always
    /// accepted.
    pub cipher_suites: Vec<CipherSuite>,
    /// Connections are encrypted, but a connector does not check with whom. Protects against
    /// eavesdropping only.
    pub skip_verification: bool,
    /// The protocols to offer with ALPN, such as `h2`.
    pub application_protocols: Vec<String>,
}

impl TlsSettings {
    /// Whether an acceptor verifies certificates of clients.
    pub fn verifies_clients(&self) -> bool {
        self.trusted_ca.is_some()
    }

    /// Whether a process may speak only for the members that its certificate is for: where
    /// certificates are verified and names are given, unless that is turned off.
    pub fn binds_members(&self) -> bool {
        let has_names =
            !self.allowed_common_names.is_empty() || !self.allowed_host_names.is_empty();
        self.verifies_clients() && has_names && !self.skip_member_binding
    }

    pub(super) fn protocol_versions(&self) -> Vec<&'static SupportedProtocolVersion> {
        let max = self.version_max.unwrap_or(TlsVersion::Tls13);
        let all = [
            (TlsVersion::Tls12, &rustls::version::TLS12),
            (TlsVersion::Tls13, &rustls::version::TLS13),
        ];
        let allowed =
            all.into_iter().filter(|(version, _)| (self.version_min..=max).contains(version));
        allowed.map(|(_, version)| version).collect()
    }

    pub(super) fn supported_suites(&self) -> Vec<SupportedCipherSuite> {
        let all = rustls::crypto::ring::DEFAULT_CIPHER_SUITES.iter().copied();
        let is_13 =
            |suite: &SupportedCipherSuite| suite.version().version == ProtocolVersion::TLSv1_3;
        let is_given = |suite: &SupportedCipherSuite| {
            self.cipher_suites.iter().any(|given| given.suite.suite() == suite.suite())
        };
        all.filter(|suite| self.cipher_suites.is_empty() || is_13(suite) || is_given(suite))
            .collect()
    }
}

/// A version of TLS. Older ones are not supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// TLS 1.2.
    #[default]
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl TlsVersion {
    /// The version with this name: `TLS1.2` or `TLS1.3`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "TLS1.2" => Some(Self::Tls12),
            "TLS1.3" => Some(Self::Tls13),
            _ => None,
        }
    }
}

/// A cipher suite by the name that Go and the TLS standards give it.
#[derive(Clone, Copy)]
pub struct CipherSuite {
    name: &'static str,
    suite: SupportedCipherSuite,
}

impl CipherSuite {
    /// The suite with this name, such as `TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`.
    pub fn from_name(name: &str) -> Option<Self> {
        let found = SUITES.iter().find(|(names, _)| names.contains(&name));
        found.map(|(names, suite)| Self { name: names[0], suite: *suite })
    }

    /// The names of all supported suites.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SUITES.iter().map(|(names, _)| names[0])
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl PartialEq for CipherSuite {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for CipherSuite {}

impl fmt::Debug for CipherSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Each with the names that Go accepts for it.
const SUITES: &[(&[&str], SupportedCipherSuite)] = &[
    (&["TLS_AES_128_GCM_SHA256"], suites::TLS13_AES_128_GCM_SHA256),
    (&["TLS_AES_256_GCM_SHA384"], suites::TLS13_AES_256_GCM_SHA384),
    (&["TLS_CHACHA20_POLY1305_SHA256"], suites::TLS13_CHACHA20_POLY1305_SHA256),
    (&["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"], suites::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    (&["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"], suites::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    (
        &[
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
            "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        ],
        suites::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
    (&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"], suites::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    (&["TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"], suites::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    (
        &["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"],
        suites::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_of_the_provider_has_a_name() {
        let provided = rustls::crypto::ring::DEFAULT_CIPHER_SUITES;
        assert_eq!(provided.len(), SUITES.len());
        for suite in provided {
            assert!(SUITES.iter().any(|(_, named)| named == suite), "{suite:?}");
        }
    }

    #[test]
    fn given_suites_limit_version_1_2_only() {
        let name = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384";
        let cipher_suites = vec![CipherSuite::from_name(name).unwrap()];
        let settings = TlsSettings { cipher_suites, ..TlsSettings::default() };
        assert_eq!(settings.supported_suites().len(), 4);
        assert_eq!(TlsSettings::default().supported_suites().len(), SUITES.len());
        assert_eq!(CipherSuite::from_name("TLS_RSA_WITH_RC4_128_SHA"), None);
    }

    #[test]
    fn versions_are_a_range() {
        let mut settings = TlsSettings::default();
        assert_eq!(settings.protocol_versions().len(), 2);
        settings.version_min = TlsVersion::Tls13;
        assert_eq!(settings.protocol_versions(), [&rustls::version::TLS13]);
        settings.version_max = Some(TlsVersion::Tls12);
        assert!(settings.protocol_versions().is_empty());
    }
}
