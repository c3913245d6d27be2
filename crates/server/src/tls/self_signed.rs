//! Certificates that this program makes: a self-signed one for `--auto-tls`, and those of a
//! private authority for the demo.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use quorate::tls::valid_until;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

/// A certificate and its private key, in PEM format.
#[derive(Clone)]
pub struct CertificateAndKey {
    pub certificate: String,
    pub key: String,
}

/// An authority that signs certificates for servers and clients.
pub struct CertificateAuthority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    validity: Duration,
}

impl CertificateAuthority {
    /// Makes an authority whose certificates are valid from now on.
    pub fn new(name: &str, validity: Duration) -> Result<Self, String> {
        let mut params = params(name, &[], validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.extended_key_usages = Vec::new();
        let key = KeyPair::generate().map_err(text)?;
        let issuer = CertifiedIssuer::self_signed(params, key).map_err(text)?;
        Ok(Self { issuer, validity })
    }

    /// The certificate of the authority itself, in PEM format.
    pub fn certificate(&self) -> String {
        self.issuer.pem()
    }

    /// Signs a certificate for these host names and IP addresses.
    pub fn issue(&self, common_name: &str, hosts: &[String]) -> Result<CertificateAndKey, String> {
        let key = KeyPair::generate().map_err(text)?;
        self.sign(&key, &params(common_name, hosts, self.validity)?)
    }

    /// Signs a certificate that only clients can use.
    pub fn issue_client(&self, common_name: &str) -> Result<CertificateAndKey, String> {
        let key = KeyPair::generate().map_err(text)?;
        let mut params = params(common_name, &[], self.validity)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&key, &params)
    }

    fn sign(&self, key: &KeyPair, params: &CertificateParams) -> Result<CertificateAndKey, String> {
        let certificate = params.signed_by(key, &self.issuer).map_err(text)?;
        Ok(CertificateAndKey { certificate: certificate.pem(), key: key.serialize_pem() })
    }
}

/// The files of a self-signed certificate in this directory. They are made if they do not exist or
/// have expired.
pub(super) fn certificate_files(
    directory: &Path,
    hosts: &[String],
    years: u32,
) -> Result<(PathBuf, PathBuf), String> {
    let (certificate, key) = (directory.join("cert.pem"), directory.join("key.pem"));
    let is_valid = fs::read(&certificate).is_ok_and(|pem| {
        valid_until(&pem).is_some_and(|until| until > SystemTime::now()) && key.exists()
    });
    if is_valid {
        return Ok((certificate, key));
    }
    let validity = YEAR * years.clamp(1, YEARS_MAX);
    let made = self_signed(hosts, validity)?;
    create_private_directory(directory).map_err(text)?;
    write_private(&key, &made.key).map_err(text)?;
    write_private(&certificate, &made.certificate).map_err(text)?;
    tracing::info!(directory = %directory.display(), ?hosts, "made a self-signed certificate");
    Ok((certificate, key))
}

fn self_signed(hosts: &[String], validity: Duration) -> Result<CertificateAndKey, String> {
    let key = KeyPair::generate().map_err(text)?;
    let mut params = params("", hosts, validity)?;
    params.distinguished_name.push(DnType::OrganizationName, "quorate");
    let certificate = params.self_signed(&key).map_err(text)?;
    Ok(CertificateAndKey { certificate: certificate.pem(), key: key.serialize_pem() })
}

fn params(
    common_name: &str,
    hosts: &[String],
    validity: Duration,
) -> Result<CertificateParams, String> {
    let mut params = CertificateParams::new(hosts).map_err(text)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    if !common_name.is_empty() {
        params.distinguished_name.push(DnType::CommonName, common_name);
    }
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let now = SystemTime::now();
    // The clocks of machines differ a little.
    params.not_before = (now - CLOCK_DIFFERENCE).into();
    params.not_after = (now + validity).into();
    Ok(params)
}

/// Writes a file that only its owner can read.
pub fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)
}

fn create_private_directory(path: &Path) -> std::io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn text(error: impl ToString) -> String {
    error.to_string()
}

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Dates in certificates end with the year 9999.
const YEARS_MAX: u32 = 1000;
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_kept_while_they_are_valid() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("fixtures/client");
        let hosts = ["localhost".to_owned(), "0.0.0.0".to_owned(), "::1".to_owned()];
        let (certificate, key) = certificate_files(&place, &hosts, 1).unwrap();
        let first = fs::read(&certificate).unwrap();
        let until = valid_until(&first).unwrap();
        let left = until.duration_since(SystemTime::now()).unwrap();
        assert!(left > YEAR - CLOCK_DIFFERENCE && left <= YEAR, "{left:?}");
        certificate_files(&place, &hosts, 1).unwrap();
        assert_eq!(fs::read(&certificate).unwrap(), first);
        let expired = CertificateAuthority::new("x", Duration::ZERO).unwrap();
        fs::write(&certificate, expired.certificate()).unwrap();
        certificate_files(&place, &hosts, 1).unwrap();
        assert!(valid_until(&fs::read(&certificate).unwrap()).unwrap() > SystemTime::now());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&key), mode(&place)), (0o600, 0o700));
        }
    }
}
