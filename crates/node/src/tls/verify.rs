//! Who is accepted as the other side of a connection: rustls checks the chain, the validity and
//! the revocation; the allowed names are checked here.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, SignatureScheme,
};

use super::subject::common_name;

/// The names of which the other side has to have one. An empty list allows every name.
#[derive(Clone, Debug, Default)]
pub(super) struct AllowedNames {
    pub(super) common_names: Vec<String>,
    pub(super) host_names: Vec<ServerName<'static>>,
}

/// The text of a refusal.
struct NameNotAllowed(String);

impl fmt::Display for NameNotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// rustls puts this one into its own texts.
impl fmt::Debug for NameNotAllowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NameNotAllowed {}

impl AllowedNames {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        if !self.common_names.is_empty() {
            let name = common_name(certificate).unwrap_or_default();
            if !self.common_names.contains(&name) {
                return Err(refused(format!("the common name {name:?} is not allowed")));
            }
        }
        if !self.host_names.is_empty() {
            let certificate = ParsedCertificate::try_from(certificate)?;
            let is_valid = |name| verify_server_name(&certificate, name).is_ok();
            if !self.host_names.iter().any(is_valid) {
                return Err(refused("the certificate is for no allowed host name".into()));
            }
        }
        Ok(())
    }
}

fn refused(text: String) -> Error {
    let error = OtherError(Arc::new(NameNotAllowed(text)));
    Error::InvalidCertificate(CertificateError::Other(error))
}

/// The certificates of the trusted CA file. As in Go, the other side may present one of them
/// itself: a self-signed certificate that is its own authority, as `openssl req -x509` makes it.
#[derive(Clone, Debug, Default)]
pub(super) struct TrustedThemselves(pub(super) Vec<CertificateDer<'static>>);

impl TrustedThemselves {
    /// Accepts such a certificate, which rustls refuses because it is an authority's. That is
    /// found only after its validity was checked, and who has its key could make one that is
    /// accepted anyway.
    fn excuse<T>(
        &self,
        verified: Result<T, Error>,
        certificate: &CertificateDer<'_>,
    ) -> Result<Option<T>, Error> {
        let is_authority = |error: &Error| match error {
            Error::InvalidCertificate(CertificateError::Other(error)) => {
                error.0.to_string() == USED_AS_END_ENTITY
            }
            _ => false,
        };
        match verified {
            Err(error) if is_authority(&error) && self.0.contains(certificate) => Ok(None),
            verified => verified.map(Some),
        }
    }
}

/// How rustls calls the certificate of an authority that is presented as that of a client or server.
const USED_AS_END_ENTITY: &str = "CaUsedAsEndEntity";

/// Verifies clients. Every verifier has to accept a certificate: they differ in their revocation
/// lists.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    pub(super) first: Arc<dyn ClientCertVerifier>,
    pub(super) others: Vec<Arc<dyn ClientCertVerifier>>,
    pub(super) trusted: TrustedThemselves,
    pub(super) allowed: AllowedNames,
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.first.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        for verifier in [&self.first].into_iter().chain(&self.others) {
            let verified = verifier.verify_client_cert(end_entity, intermediates, now);
            self.trusted.excuse(verified, end_entity)?;
        }
        self.allowed.check(end_entity)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.first.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.first.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.first.supported_verify_schemes()
    }
}

/// Verifies servers.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    /// Every one has to accept a certificate. Without any, all certificates are accepted.
    pub(super) inner: Vec<Arc<WebPkiServerVerifier>>,
    pub(super) trusted: TrustedThemselves,
    pub(super) allowed: AllowedNames,
    pub(super) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        for inner in &self.inner {
            let verified = inner.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            );
            if self.trusted.excuse(verified, end_entity)?.is_none() {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
            }
        }
        if !self.inner.is_empty() {
            self.allowed.check(end_entity)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
