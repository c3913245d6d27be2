//! The certificates of a demo with TLS: an authority for clients and what they connect to, another
//! one for members, so that no client can connect as a member.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quorate_server::tls::self_signed::{CertificateAndKey, CertificateAuthority, write_private};

use crate::client_tls::ClientTls;
use crate::error::CliError;

/// Long enough for a demo that runs on.
const VALIDITY: Duration = Duration::from_secs(30 * 24 * 3600);

pub(super) struct DemoCertificates {
    directory: PathBuf,
}

impl DemoCertificates {
    /// Makes all of them, in a new directory in this one.
    pub(super) fn create(directory: &Path, members: usize) -> Result<Self, CliError> {
        let failed = |error: String| CliError::failed(format!("cannot make certificates: {error}"));
        let certificates = Self { directory: directory.join("certificates") };
        fs::create_dir(&certificates.directory).map_err(|error| failed(error.to_string()))?;
        let write = |name: &str, text: &str| {
            write_private(&certificates.directory.join(name), text)
                .map_err(|error| failed(error.to_string()))
        };
        let write_issued = |name: &str, issued: &CertificateAndKey| {
            write(&format!("{name}.pem"), &issued.certificate)?;
            write(&format!("{name}.key"), &issued.key)
        };
        let authority = |name: &str| CertificateAuthority::new(name, VALIDITY).map_err(failed);
        let (clients, peers) = (authority("quorate demo")?, authority("quorate demo members")?);
        write("ca.pem", &clients.certificate())?;
        write("peer-ca.pem", &peers.certificate())?;
        let hosts = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        for name in (1..=members).map(|number| format!("m{number}")) {
            write_issued(&name, &clients.issue(&name, &hosts).map_err(failed)?)?;
            let peer = peers.issue(&name, &hosts).map_err(failed)?;
            write_issued(&format!("peer-{name}"), &peer)?;
        }
        write_issued("client", &clients.issue_client("client").map_err(failed)?)?;
        Ok(certificates)
    }

    /// The flags of this member.
    pub(super) fn flags(&self, number: usize) -> Vec<OsString> {
        let mut flags = Vec::new();
        for prefix in ["", "peer-"] {
            let files = [
                ("cert-file", format!("{prefix}m{number}.pem")),
                ("key-file", format!("{prefix}m{number}.key")),
                ("trusted-ca-file", format!("{prefix}ca.pem")),
            ];
            for (name, file) in files {
                flags.push(OsString::from(format!("--{prefix}{name}")));
                flags.push(self.directory.join(file).into_os_string());
            }
        }
        flags.extend(["--client-cert-auth".into(), "--peer-client-cert-auth".into()]);
        flags
    }

    pub(super) fn client_tls(&self) -> ClientTls {
        let [cacert, cert, key] = self.client_files();
        ClientTls::with_files(cacert, cert, key)
    }

    /// The authority, and the certificate and the key of clients.
    pub(super) fn client_files(&self) -> [PathBuf; 3] {
        ["ca.pem", "client.pem", "client.key"].map(|name| self.directory.join(name))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use quorate_server::tls::{TlsConnector, TlsSettings};
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    fn settings(directory: &Path, own: &str, authority: &str) -> TlsSettings {
        let mut settings = TlsSettings::default();
        settings.certificate = Some(directory.join(format!("{own}.pem")));
        settings.key = Some(directory.join(format!("{own}.key")));
        settings.trusted_ca = Some(directory.join(authority));
        settings
    }

    /// Whether a peer port of the demo accepts this certificate.
    async fn is_accepted(directory: &Path, own: &str) -> bool {
        let acceptor = settings(directory, "peer-m1", "peer-ca.pem");
        let acceptor = quorate_server::tls::TlsAcceptor::new(&acceptor).unwrap();
        let connector = TlsConnector::new(&settings(directory, own, "peer-ca.pem")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server =
            async move { acceptor.accept(listener.accept().await.unwrap().0).await.is_ok() };
        let client = async move {
            let stream = TcpStream::connect(address).await.unwrap();
            let mut stream = connector.connect(stream, &address.to_string()).await.unwrap();
            let _ = stream.read(&mut [0]).await;
        };
        // The client ends when the server drops the connection.
        let client = tokio::spawn(client);
        let accepted = tokio::spawn(server).await.unwrap();
        client.await.unwrap();
        accepted
    }

    #[tokio::test]
    async fn a_client_of_the_demo_is_not_a_member() {
        let directory = tempfile::tempdir().unwrap();
        DemoCertificates::create(directory.path(), 2).unwrap();
        let files = directory.path().join("certificates");
        assert!(is_accepted(&files, "peer-m2").await);
        for own in ["client", "m2"] {
            assert!(!is_accepted(&files, own).await, "{own}");
        }
    }
}
