//! TLS of a server: its ports for clients, and clusters whose members use it among themselves.

#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

#[path = "../../../node/tests/tls/certificates.rs"]
mod certificates;
mod clients;
mod clusters;
mod gateway;
#[path = "../support/mod.rs"]
mod support;

use quorate_server::tls::TlsSettings;

use certificates::{TestAuthority, TestCertificate};

/// Settings with which both sides have to have a certificate of the authority.
fn mutual(authority: &TestAuthority, own: &TestCertificate) -> TlsSettings {
    let mut settings = TlsSettings::default();
    settings.certificate = Some(own.certificate.clone());
    settings.key = Some(own.key.clone());
    settings.trusted_ca = Some(authority.ca());
    settings
}
