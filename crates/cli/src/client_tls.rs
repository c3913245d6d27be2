//! TLS of the connections to a cluster: etcdctl's flags and variables.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use clap::Args;
use hyper_util::rt::TokioIo;
use quorate_server::tls::{PeerStream, TlsConnector, TlsSettings};
use tokio::net::TcpStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

use crate::error::CliError;

/// How to connect with TLS. Variables are $QUORATE_CACERT and so on, then $ETCDCTL_CACERT and so
/// on.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Connection and output")]
pub(crate) struct TlsArguments {
    /// Certificates of the authorities that servers are verified with. Default: $QUORATE_CACERT,
    /// then $ETCDCTL_CACERT, then those of the system.
    #[arg(long, value_name = "FILE")]
    pub(crate) cacert: Option<PathBuf>,
    /// Certificate of this client. Default: $QUORATE_CERT, then $ETCDCTL_CERT.
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: Option<PathBuf>,
    /// Private key of this client. Default: $QUORATE_KEY, then $ETCDCTL_KEY.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
    /// Do not verify the certificates of servers: only for tests.
    #[arg(long)]
    pub(crate) insecure_skip_tls_verify: bool,
}

/// What every connection of a command uses.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientTls {
    settings: TlsSettings,
    /// Whether a flag or variable asks for TLS: addresses without a scheme use it then.
    is_given: bool,
}

impl ClientTls {
    pub(crate) fn new(arguments: &TlsArguments) -> Self {
        Self::from_variables(arguments, |name| std::env::var(name).ok())
    }

    fn from_variables(arguments: &TlsArguments, variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| {
            let values = PREFIXES.iter().filter_map(|prefix| variable(&format!("{prefix}{name}")));
            values.into_iter().find(|value| !value.is_empty())
        };
        let path = |given: &Option<PathBuf>, name| given.clone().or(set(name).map(PathBuf::from));
        let mut settings = TlsSettings::default();
        settings.trusted_ca = path(&arguments.cacert, "CACERT");
        settings.certificate = path(&arguments.cert, "CERT");
        settings.key = path(&arguments.key, "KEY");
        let skip = set("INSECURE_SKIP_TLS_VERIFY");
        settings.skip_verification = arguments.insecure_skip_tls_verify
            || skip.is_some_and(|value| matches!(value.as_str(), "true" | "1" | "t"));
        let is_given = settings != TlsSettings::default();
        settings.application_protocols = vec!["h2".into()];
        Self { settings, is_given }
    }

    /// TLS with these files.
    pub(crate) fn with_files(cacert: PathBuf, cert: PathBuf, key: PathBuf) -> Self {
        let (cacert, cert, key) = (Some(cacert), Some(cert), Some(key));
        let arguments = TlsArguments { cacert, cert, key, insecure_skip_tls_verify: false };
        Self::from_variables(&arguments, |_| None)
    }

    /// The scheme of addresses that have none.
    pub(crate) fn default_scheme(&self) -> &'static str {
        if self.is_given { "https" } else { "http" }
    }

    pub(crate) fn connector(&self) -> Result<TlsChannelConnector, CliError> {
        let connector = TlsConnector::new(&self.settings);
        let connector = connector.map_err(|error| CliError::usage(format!("TLS: {error}")))?;
        Ok(TlsChannelConnector(Arc::new(connector)))
    }
}

/// The first variable that is set is used.
const PREFIXES: [&str; 2] = ["QUORATE_", "ETCDCTL_"];

/// Opens the connections of a channel.
#[derive(Clone)]
pub(crate) struct TlsChannelConnector(Arc<TlsConnector>);

impl TlsChannelConnector {
    /// A connection to this host and port.
    pub(crate) async fn connect(&self, authority: &str) -> std::io::Result<Box<dyn PeerStream>> {
        let stream = TcpStream::connect(authority).await?;
        stream.set_nodelay(true)?;
        self.0.connect(stream, authority).await
    }
}

impl Service<Uri> for TlsChannelConnector {
    type Response = TokioIo<Box<dyn PeerStream>>;
    type Error = std::io::Error;
    type Future =
        Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send + 'static>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let address = uri.authority().map(ToString::to_string).unwrap_or_default();
            connector.connect(&address).await.map(TokioIo::new)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_take_precedence_over_variables() {
        let variable = |name: &str| match name {
            "QUORATE_CACERT" => Some("q.pem".to_owned()),
            "ETCDCTL_CACERT" => Some("e.pem".to_owned()),
            "ETCDCTL_KEY" => Some("e.key".to_owned()),
            "ETCDCTL_INSECURE_SKIP_TLS_VERIFY" => Some("true".to_owned()),
            _ => None,
        };
        let tls = ClientTls::from_variables(&TlsArguments::default(), variable);
        assert_eq!(tls.settings.trusted_ca, Some("q.pem".into()));
        assert_eq!((tls.settings.certificate, tls.settings.key), (None, Some("e.key".into())));
        assert!(tls.settings.skip_verification);
        let arguments = TlsArguments { cacert: Some("f.pem".into()), ..TlsArguments::default() };
        let tls = ClientTls::from_variables(&arguments, variable);
        assert_eq!(tls.settings.trusted_ca, Some("f.pem".into()));
        assert_eq!(tls.default_scheme(), "https");
        let none = ClientTls::from_variables(&TlsArguments::default(), |_| None);
        assert_eq!(none.default_scheme(), "http");
    }

    #[test]
    fn unusable_files_are_invalid_usage() {
        let arguments = TlsArguments { cacert: Some("/nowhere".into()), ..TlsArguments::default() };
        let error = ClientTls::from_variables(&arguments, |_| None).connector().err().unwrap();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("/nowhere"), "{error}");
    }
}
