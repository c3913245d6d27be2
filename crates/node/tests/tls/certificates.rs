//! Certificates for tests, made by an authority of the test.

#![allow(dead_code, reason = "each test file uses what it needs")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyIdMethod, KeyPair,
    KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use tempfile::TempDir;

static COUNT: AtomicU64 = AtomicU64::new(0);

pub(crate) struct TestAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

/// The files of a certificate.
#[derive(Clone, Debug)]
pub(crate) struct TestCertificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    serial: u64,
}

impl TestAuthority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        // Each has another name, as real ones have.
        let name = format!("authority {}", COUNT.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, directory }
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.path("ca.pem")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A certificate for this machine, with this common name.
    pub(crate) fn issue(&self, name: &str) -> TestCertificate {
        self.issue_with(name, |_| {})
    }

    pub(crate) fn issue_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> TestCertificate {
        let hosts = ["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let serial = 1 + name.bytes().fold(7, |sum: u64, byte| (sum * 31 + u64::from(byte)) >> 1);
        params.serial_number = Some(SerialNumber::from(serial));
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = TestCertificate {
            certificate: self.path(&format!("{name}.pem")),
            key: self.path(&format!("{name}.key")),
            serial,
        };
        std::fs::write(&files.certificate, certificate.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    /// A certificate that no authority has signed.
    pub(crate) fn self_signed(&self, name: &str) -> TestCertificate {
        let files = self.issue(name);
        let params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        std::fs::write(&files.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    /// A certificate for this machine that is its own authority, as `openssl req -x509` makes it.
    pub(crate) fn own(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> TestCertificate {
        let files = self.issue(name);
        let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        std::fs::write(&files.certificate, params.self_signed(&key).unwrap().pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    /// A file with the revocation of these certificates.
    pub(crate) fn revoke(&self, revoked: &[&TestCertificate]) -> PathBuf {
        let revoked = revoked.iter().map(|certificate| RevokedCertParams {
            serial_number: SerialNumber::from(certificate.serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2099, 1, 1),
            crl_number: SerialNumber::from(1_u64),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let path = self.path("revoked.pem");
        std::fs::write(&path, params.signed_by(&self.issuer).unwrap().pem().unwrap()).unwrap();
        path
    }
}

impl TestCertificate {
    /// Replaces the files with those of another certificate, as an operator does.
    pub(crate) fn replace_with(&self, other: &Self) {
        std::fs::copy(&other.key, &self.key).unwrap();
        std::fs::copy(&other.certificate, &self.certificate).unwrap();
    }
}

/// Not a certificate, and not a key.
pub(crate) fn write_garbage(path: &Path) {
    std::fs::write(path, "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").unwrap();
}
