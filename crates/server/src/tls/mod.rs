//! TLS of the listeners: which certificates they use, and the handshakes with clients. What TLS
//! itself does is in `quorate::tls`, for clients and peers alike.

mod handshakes;
mod peers;
pub mod self_signed;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use quorate::tcp::PeerStream;
pub use quorate::tls::{TlsAcceptor, TlsConfigError, TlsConnector, TlsSettings};

use quorate::tls::HandshakeThread;

pub(crate) use handshakes::{HandshakeCounters, Handshakes};
pub(crate) use peers::{PeerSecurity, PeerTls};

use crate::config::{ServerConfig, TransportSecurity};
use crate::url::Url;

/// The acceptor of the `https` listeners for clients, metrics and the console; none if there are none.
pub(crate) fn client_acceptor(
    config: &ServerConfig,
) -> Result<Option<Arc<TlsAcceptor>>, TlsConfigError> {
    let urls = [
        &config.listen_client_urls[..],
        &config.listen_client_http_urls[..],
        &config.listen_metrics_urls[..],
        &config.listen_console_urls[..],
    ]
    .concat();
    if !urls.iter().any(Url::is_tls) {
        return Ok(None);
    }
    let mut settings = effective(config, &config.client_security, &urls, "client")?;
    settings.application_protocols = vec!["h2".into(), "http/1.1".into()];
    TlsAcceptor::new(&settings).map(|acceptor| Some(Arc::new(acceptor)))
}

/// How connections with peers are secured.
pub(crate) fn peer_security(
    config: &ServerConfig,
    listeners: Vec<(std::net::SocketAddr, bool)>,
) -> Result<PeerSecurity, TlsConfigError> {
    let accepts_tls = listeners.iter().any(|(_, is_tls)| *is_tls);
    let security = &config.peer_security;
    let needs_files = accepts_tls || security.settings.certificate.is_some();
    if !needs_files && security.settings.trusted_ca.is_none() {
        return Ok(PeerSecurity::plaintext());
    }
    let settings = effective(config, security, &config.listen_peer_urls, "peer")?;
    let acceptor = match accepts_tls {
        true => Some(Arc::new(TlsAcceptor::new(&settings)?)),
        false => None,
    };
    let tls = PeerTls {
        acceptor,
        connector: Arc::new(TlsConnector::new(&settings)?),
        handshakes: HandshakeThread::start().map_err(|error| TlsConfigError::Settings {
            reason: format!("cannot start the thread for handshakes: {error}"),
        })?,
        binds_members: settings.binds_members(),
    };
    Ok(PeerSecurity::new(listeners, tls))
}

/// The settings, with a certificate that the server has made for itself where that is asked for.
fn effective(
    config: &ServerConfig,
    security: &TransportSecurity,
    urls: &[Url],
    kind: &str,
) -> Result<TlsSettings, TlsConfigError> {
    let mut settings = security.settings.clone();
    if security.auto_tls && settings.certificate.is_none() {
        // etcd's place.
        let directory = config.data_dir.join("fixtures").join(kind);
        let host = |url: &Url| match url.socket_path() {
            Some(_) => "localhost".to_owned(),
            None => url.host().to_owned(),
        };
        let hosts: Vec<String> = urls.iter().map(host).collect();
        let (certificate, key) = self_signed_files(&directory, &hosts, config)?;
        settings.certificate = Some(certificate);
        settings.key = Some(key);
        // The other members have self-signed certificates, too, unless an authority is given.
        settings.skip_verification = settings.trusted_ca.is_none();
    }
    Ok(settings)
}

fn self_signed_files(
    directory: &Path,
    hosts: &[String],
    config: &ServerConfig,
) -> Result<(PathBuf, PathBuf), TlsConfigError> {
    let years = config.self_signed_cert_validity;
    self_signed::certificate_files(directory, hosts, years)
        .map_err(|reason| TlsConfigError::File { path: directory.to_owned(), reason })
}
