//! Which connections with peers use TLS: those to `https` URLs, and those that arrive at `https`
//! listeners. A cluster can move from `http` to `https` while it runs, member by member.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use quorate::MemberInfo;
use quorate::tcp::{
    AcceptFuture, ConnectionSecurity, PeerIdentity, PeerStream, SecuredPeer, SecurityFuture,
};
use quorate::tls::{HandshakeThread, PeerCertificate, TlsAcceptor, TlsConnector};
use tokio::net::TcpStream;

use crate::member_details::MemberDetails;
use crate::url::Url;

/// Secures connections by the scheme of the URL that they belong to.
pub(crate) struct PeerSecurity {
    /// Addresses, and whether each of them uses TLS.
    listeners: Vec<(SocketAddr, bool)>,
    /// None: no connection uses TLS.
    tls: Option<PeerTls>,
}

/// TLS with peers. Handshakes do not run where Raft does.
pub(crate) struct PeerTls {
    /// None: no listener uses TLS.
    pub(crate) acceptor: Option<Arc<TlsAcceptor>>,
    pub(crate) connector: Arc<TlsConnector>,
    pub(crate) handshakes: HandshakeThread,
    /// Whether the certificate of a peer has to be that of the member it speaks for.
    pub(crate) binds_members: bool,
}

impl PeerSecurity {
    /// No connection uses TLS.
    pub(crate) fn plaintext() -> Self {
        Self { listeners: Vec::new(), tls: None }
    }

    pub(crate) fn new(listeners: Vec<(SocketAddr, bool)>, tls: PeerTls) -> Self {
        Self { listeners, tls: Some(tls) }
    }

    /// A member that only accepts TLS does not open other connections either.
    fn allows_plaintext(&self) -> bool {
        let accepts_tls = self.tls.as_ref().is_some_and(|tls| tls.acceptor.is_some());
        !accepts_tls || self.listeners.iter().any(|(_, is_tls)| !is_tls)
    }

    /// Whether connections at this local address use TLS. In doubt they do.
    fn accepts_tls_at(&self, local: SocketAddr) -> bool {
        let same_port = self.listeners.iter().filter(|(address, _)| address.port() == local.port());
        let exact = same_port.clone().find(|(address, _)| address.ip() == local.ip());
        let any = || same_port.clone().find(|(address, _)| address.ip().is_unspecified());
        exact.or_else(any).is_none_or(|(_, is_tls)| *is_tls)
    }
}

impl ConnectionSecurity for PeerSecurity {
    fn host_and_port<'a>(&self, address: &'a str) -> &'a str {
        address.strip_prefix(SCHEME).unwrap_or(address)
    }

    fn dial<'a>(&'a self, stream: TcpStream, address: &'a str) -> SecurityFuture<'a> {
        Box::pin(async move {
            match (address.strip_prefix(SCHEME), &self.tls) {
                (Some(address), Some(tls)) => {
                    tls.handshakes.connect(&tls.connector, stream, address).await
                }
                (Some(_), None) => {
                    Err(io::Error::other("the peer uses TLS, but no --peer-cert-file is given"))
                }
                (None, _) if !self.allows_plaintext() => {
                    Err(io::Error::other("the peer does not use TLS (its URL is http)"))
                }
                (None, _) => Ok(Box::new(stream) as Box<dyn PeerStream>),
            }
        })
    }

    fn accept(&self, stream: TcpStream) -> AcceptFuture<'_> {
        Box::pin(async move {
            let Some(tls) = &self.tls else { return Ok(SecuredPeer::any(stream)) };
            match &tls.acceptor {
                Some(acceptor) if self.accepts_tls_at(stream.local_addr()?) => {
                    let accepted = tls.handshakes.accept(acceptor, stream).await?;
                    let certificate = accepted.certificate.filter(|_| tls.binds_members);
                    let identity = certificate.map(|one| Box::new(MemberCertificate(one)) as _);
                    Ok(SecuredPeer { stream: accepted.stream, identity })
                }
                _ => Ok(SecuredPeer::any(stream)),
            }
        })
    }
}

/// Speaks for the members that it is valid for: one of their peer URLs has one of its host names
/// or IP addresses, or its common name is the name of the member.
struct MemberCertificate(PeerCertificate);

impl PeerIdentity for MemberCertificate {
    fn is_member(&self, info: &MemberInfo, _address: Option<&str>) -> bool {
        let details = MemberDetails::decode(&info.info);
        let urls = details.peer_urls.iter().filter_map(|url| Url::parse(url).ok());
        let mut hosts = urls.map(|url| url.host().to_owned());
        let is_named = || self.0.common_name().is_some_and(|name| name == details.name);
        hosts.any(|host| self.0.is_for_host(&host)) || is_named()
    }
}

const SCHEME: &str = "https://";

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::tls::TlsSettings;
    use crate::tls::self_signed::CertificateAuthority;

    #[test]
    fn the_local_address_decides_and_in_doubt_it_is_tls() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let listeners = vec![
            (address("10.0.0.1:1"), true),
            (address("0.0.0.0:1"), false),
            (address("[::]:2"), false),
        ];
        let security = PeerSecurity { listeners, tls: None };
        for (local, expected) in [
            ("10.0.0.1:1", true),
            ("10.0.0.2:1", false),
            ("[::1]:2", false),
            ("10.0.0.1:2", false),
            ("10.0.0.1:3", true),
        ] {
            assert_eq!(security.accepts_tls_at(address(local)), expected, "{local}");
        }
        assert_eq!(security.host_and_port("https://h:1"), "h:1");
        assert_eq!(security.host_and_port("h:1"), "h:1");
    }

    /// The certificate of a client, as a listener sees it.
    async fn accepted_certificate(name: &str, hosts: &[&str]) -> PeerCertificate {
        let directory = tempfile::tempdir().unwrap();
        let authority = CertificateAuthority::new("ca", Duration::from_secs(3600)).unwrap();
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let file = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            Some(path)
        };
        let settings = |name: &str, hosts: &[String]| {
            let issued = authority.issue(name, hosts).unwrap();
            let mut settings = TlsSettings::default();
            settings.certificate = file(&format!("{name}.pem"), &issued.certificate);
            settings.key = file(&format!("{name}.key"), &issued.key);
            settings.trusted_ca = file("ca.pem", &authority.certificate());
            settings
        };
        let acceptor = TlsAcceptor::new(&settings("server", &["127.0.0.1".into()])).unwrap();
        let connector = TlsConnector::new(&settings(name, &hosts)).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = async { acceptor.accept(listener.accept().await.unwrap().0).await.unwrap() };
        let client = async {
            let stream = TcpStream::connect(address).await.unwrap();
            connector.connect(stream, &address.to_string()).await.unwrap()
        };
        let (accepted, _client) = tokio::join!(server, client);
        accepted.certificate.unwrap()
    }

    #[tokio::test]
    async fn a_certificate_speaks_for_the_members_that_it_is_for() {
        let hosts = ["10.0.0.2", "m2.example", "*.wild.example"];
        let certificate = MemberCertificate(accepted_certificate("m2", &hosts).await);
        let without_hosts = MemberCertificate(accepted_certificate("m2", &[]).await);
        let member = |name: &str, urls: &[&str]| {
            let peer_urls = urls.iter().map(|url| (*url).to_owned()).collect();
            let details = MemberDetails { name: name.into(), peer_urls, ..Default::default() };
            MemberInfo { info: details.encode(), ..MemberInfo::default() }
        };
        for (name, urls, by_host, by_name) in [
            ("", &["https://10.0.0.2:2380"][..], true, false),
            ("", &["https://10.0.0.9:1", "https://m2.example:1"], true, false),
            ("", &["https://any.wild.example:1"], true, false),
            ("m2", &["https://10.0.0.3:2380"], true, true),
            ("m3", &["https://10.0.0.3:2380"], false, false),
            ("m3", &["https://m3.example:1", "https://wild.example:1"], false, false),
            ("", &[], false, false),
        ] {
            let info = member(name, urls);
            assert_eq!(certificate.is_member(&info, None), by_host, "{name} {urls:?}");
            assert_eq!(without_hosts.is_member(&info, None), by_name, "{name} {urls:?}");
        }
        assert!(!certificate.is_member(&MemberInfo::default(), Some("10.0.0.2:1")));
    }
}
