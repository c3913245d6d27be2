//! From the contents of the files to the configuration of rustls.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::{ClientConfig, Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::{Error, RootCertStore};

use super::settings::TlsSettings;
use super::subject::crl_issuer;
use super::verify::{AllowedNames, ClientVerifier, ServerVerifier, TrustedThemselves};

/// Why TLS cannot be configured like this.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsConfigError {
    /// The settings contradict each other, or lack something.
    Settings {
        /// What is wrong.
        reason: String,
    },
    /// A file cannot be read or does not contain what it should.
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

impl TlsConfigError {
    pub(super) fn settings(reason: impl Into<String>) -> Self {
        Self::Settings { reason: reason.into() }
    }

    pub(super) fn file(path: &Path, reason: impl fmt::Display) -> Self {
        Self::File { path: path.to_owned(), reason: reason.to_string() }
    }
}

impl fmt::Display for TlsConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings { reason } => f.write_str(reason),
            Self::File { path, reason } => write!(f, "{}: {reason}", path.display()),
        }
    }
}

impl std::error::Error for TlsConfigError {}

type RevocationLists = Vec<CertificateRevocationListDer<'static>>;

/// The files of a configuration with their contents.
pub(super) struct FileContents<'a>(pub(super) &'a [(PathBuf, Vec<u8>)]);

impl FileContents<'_> {
    fn of(&self, path: &Path) -> &[u8] {
        let found = self.0.iter().find(|(known, _)| known == path);
        found.map(|(_, bytes)| bytes.as_slice()).unwrap_or_default()
    }

    fn certificates(&self, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.of(path)).collect();
        let all = all.map_err(|error| TlsConfigError::file(path, error))?;
        if all.is_empty() {
            return Err(TlsConfigError::file(path, "contains no certificate in PEM format"));
        }
        Ok(all)
    }

    fn key(&self, path: &Path) -> Result<PrivateKeyDer<'static>, TlsConfigError> {
        PrivateKeyDer::from_pem_slice(self.of(path)).map_err(|error| match error {
            rustls::pki_types::pem::Error::NoItemsFound => {
                TlsConfigError::file(path, "contains no private key in PEM format")
            }
            other => TlsConfigError::file(path, other),
        })
    }

    /// The lists of a file, in PEM or DER, in groups with at most one list of each issuer: of
    /// several, a verifier would use the first one only. There is at least one group.
    fn revocation_lists(
        &self,
        path: Option<&Path>,
    ) -> Result<Vec<RevocationLists>, TlsConfigError> {
        let Some(path) = path else { return Ok(vec![RevocationLists::new()]) };
        let bytes = self.of(path);
        let lists: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_slice_iter(bytes).collect();
        let lists = lists.map_err(|error| TlsConfigError::file(path, error))?;
        let lists = match lists.is_empty() {
            true if bytes.is_empty() => return Err(TlsConfigError::file(path, "is empty")),
            true => vec![CertificateRevocationListDer::from(bytes.to_vec())],
            false => lists,
        };
        let mut groups: Vec<RevocationLists> = Vec::new();
        for list in lists {
            let issuer = crl_issuer(&list).map(<[u8]>::to_vec);
            let has_none = |group: &&mut RevocationLists| {
                !group.iter().any(|other| crl_issuer(other) == issuer.as_deref())
            };
            match groups.iter_mut().find(has_none) {
                Some(group) => group.push(list),
                None => groups.push(vec![list]),
            }
        }
        Ok(groups)
    }

    /// Every certificate of the file has to be usable.
    fn authorities(&self, path: &Path) -> Result<Arc<RootCertStore>, TlsConfigError> {
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(path)? {
            roots.add(certificate).map_err(|error| TlsConfigError::file(path, error))?;
        }
        Ok(Arc::new(roots))
    }

    /// The system's authorities: those that rustls does not support are left out.
    fn system_authorities(&self, path: &Path) -> Result<Arc<RootCertStore>, TlsConfigError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(self.certificates(path)?);
        Ok(Arc::new(roots))
    }
}

/// Which files the configuration of an acceptor is made from.
pub(super) fn server_files(settings: &TlsSettings) -> Vec<PathBuf> {
    let given =
        [&settings.certificate, &settings.key, &settings.trusted_ca, &settings.revocation_list];
    given.into_iter().flatten().cloned().collect()
}

pub(super) fn server_config(
    settings: &TlsSettings,
    files: &FileContents<'_>,
) -> Result<ServerConfig, TlsConfigError> {
    let (Some(certificate), Some(key)) = (&settings.certificate, &settings.key) else {
        return Err(TlsConfigError::settings("a listener needs a certificate and its key"));
    };
    let provider = provider(settings);
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&settings.protocol_versions())
        .map_err(unusable)?;
    let builder = match &settings.trusted_ca {
        None => {
            let allowed = &settings.allowed_common_names;
            let needs_authority = settings.client_cert_auth
                || settings.revocation_list.is_some()
                || !allowed.is_empty()
                || !settings.allowed_host_names.is_empty();
            if needs_authority {
                let reason = "certificates of clients cannot be verified without a trusted CA file";
                return Err(TlsConfigError::settings(reason));
            }
            builder.with_no_client_auth()
        }
        Some(path) => {
            let roots = files.authorities(path)?;
            let verifier = |lists| {
                let (roots, provider) = (Arc::clone(&roots), Arc::clone(&provider));
                WebPkiClientVerifier::builder_with_provider(roots, provider)
                    .with_crls(lists)
                    .allow_unknown_revocation_status()
                    .build()
                    .map_err(|error| verifier_error(settings, path, &error))
            };
            let lists = files.revocation_lists(settings.revocation_list.as_deref())?;
            let mut lists = lists.into_iter();
            let first = verifier(lists.next().unwrap_or_default())?;
            let others = lists.map(verifier).collect::<Result<_, _>>()?;
            let (trusted, allowed) =
                (TrustedThemselves(files.certificates(path)?), allowed_names(settings)?);
            let verifier = ClientVerifier { first, others, trusted, allowed };
            builder.with_client_cert_verifier(Arc::new(verifier))
        }
    };
    let (chain, key_der) = (files.certificates(certificate)?, files.key(key)?);
    let mut config = builder
        .with_single_cert(chain, key_der)
        .map_err(|error| TlsConfigError::file(certificate, key_error(&error, key)))?;
    config.alpn_protocols = protocols(settings);
    // A resumed session would not check the client's certificate again: neither its expiry nor
    // its revocation.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Which files the configuration of a connector is made from.
pub(super) fn client_files(settings: &TlsSettings) -> Vec<PathBuf> {
    let (certificate, key) = dial_certificate(settings);
    let authorities = if settings.skip_verification {
        None
    } else {
        settings.trusted_ca.clone().or_else(system_ca_file)
    };
    let lists = settings.revocation_list.clone();
    [certificate, key, authorities, lists].into_iter().flatten().collect()
}

fn dial_certificate(settings: &TlsSettings) -> (Option<PathBuf>, Option<PathBuf>) {
    match (&settings.dial_certificate, &settings.dial_key) {
        (None, None) => (settings.certificate.clone(), settings.key.clone()),
        (certificate, key) => (certificate.clone(), key.clone()),
    }
}

pub(super) fn client_config(
    settings: &TlsSettings,
    files: &FileContents<'_>,
) -> Result<ClientConfig, TlsConfigError> {
    let provider = provider(settings);
    let inner = if settings.skip_verification {
        Vec::new()
    } else {
        let (path, roots) = match (&settings.trusted_ca, system_ca_file()) {
            (Some(path), _) => (path.clone(), files.authorities(path)?),
            (None, Some(path)) => (path.clone(), files.system_authorities(&path)?),
            (None, None) => {
                let reason =
                    "no authorities to trust: no CA file is given, and the system has none";
                return Err(TlsConfigError::settings(reason));
            }
        };
        let lists = files.revocation_lists(settings.revocation_list.as_deref())?;
        let verifier = |lists| {
            let (roots, provider) = (Arc::clone(&roots), Arc::clone(&provider));
            WebPkiServerVerifier::builder_with_provider(roots, provider)
                .with_crls(lists)
                .allow_unknown_revocation_status()
                .build()
                .map_err(|error| verifier_error(settings, &path, &error))
        };
        lists.into_iter().map(verifier).collect::<Result<_, _>>()?
    };
    let trusted = match &settings.trusted_ca {
        Some(path) if !settings.skip_verification => files.certificates(path)?,
        _ => Vec::new(),
    };
    let (trusted, allowed) = (TrustedThemselves(trusted), allowed_names(settings)?);
    let verifier = ServerVerifier { inner, trusted, allowed, provider: Arc::clone(&provider) };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&settings.protocol_versions())
        .map_err(unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match dial_certificate(settings) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => {
            let (chain, key_der) = (files.certificates(&certificate)?, files.key(&key)?);
            let config = builder.with_client_auth_cert(chain, key_der);
            config.map_err(|error| TlsConfigError::file(&certificate, key_error(&error, &key)))?
        }
        _ => {
            return Err(TlsConfigError::settings(
                "a certificate needs its key, and a key its certificate",
            ));
        }
    };
    config.alpn_protocols = protocols(settings);
    config.resumption = Resumption::disabled();
    Ok(config)
}

fn provider(settings: &TlsSettings) -> Arc<CryptoProvider> {
    let provider = rustls::crypto::ring::default_provider();
    Arc::new(CryptoProvider { cipher_suites: settings.supported_suites(), ..provider })
}

fn protocols(settings: &TlsSettings) -> Vec<Vec<u8>> {
    settings.application_protocols.iter().map(|name| name.clone().into_bytes()).collect()
}

fn allowed_names(settings: &TlsSettings) -> Result<AllowedNames, TlsConfigError> {
    let host_names = settings.allowed_host_names.iter().map(|name| {
        let wrong = |_| TlsConfigError::settings(format!("{name:?} is not a host name"));
        ServerName::try_from(name.clone()).map_err(wrong)
    });
    let common_names = settings.allowed_common_names.clone();
    Ok(AllowedNames { common_names, host_names: host_names.collect::<Result<_, _>>()? })
}

fn unusable(error: Error) -> TlsConfigError {
    TlsConfigError::settings(format!("versions and cipher suites cannot be used together: {error}"))
}

fn key_error(error: &Error, key: &Path) -> String {
    match error {
        Error::InconsistentKeys(_) => {
            format!("the certificate does not belong to the key in {}", key.display())
        }
        other => other.to_string(),
    }
}

fn verifier_error(
    settings: &TlsSettings,
    authorities: &Path,
    error: &rustls::server::VerifierBuilderError,
) -> TlsConfigError {
    match (error, &settings.revocation_list) {
        (rustls::server::VerifierBuilderError::InvalidCrl(reason), Some(path)) => {
            TlsConfigError::file(path, format!("not a usable revocation list: {reason:?}"))
        }
        _ => TlsConfigError::file(authorities, error),
    }
}

/// The file in which the system has the authorities that it trusts; Go looks in the same places.
fn system_ca_file() -> Option<PathBuf> {
    let given = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let usual = SYSTEM_CA_FILES.iter().map(PathBuf::from);
    given.into_iter().chain(usual).find(|path| path.is_file())
}

const SYSTEM_CA_FILES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
