//! The settings of TLS: the same for clients and peers, under two sets of names.

use std::path::PathBuf;

use quorate::tls::{CipherSuite, TlsSettings, TlsVersion};

use super::error::ServerConfigError;
use super::settings::Settings;
use super::{ServerConfig, Url};

/// TLS of one kind of listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransportSecurity {
    pub settings: TlsSettings,
    /// Without a certificate, the server makes one for itself.
    pub auto_tls: bool,
}

impl TransportSecurity {
    /// Whether there is a certificate for `https` URLs.
    pub fn is_configured(&self) -> bool {
        self.settings.certificate.is_some() || self.auto_tls
    }
}

/// The names of the flags for clients and for peers.
struct FlagNames {
    cert: &'static str,
    key: &'static str,
    trusted_ca: &'static str,
    cert_auth: &'static str,
    crl: &'static str,
    allowed_cn: &'static str,
    allowed_hostname: &'static str,
    auto_tls: &'static str,
}

const CLIENT: FlagNames = FlagNames {
    cert: "cert-file",
    key: "key-file",
    trusted_ca: "trusted-ca-file",
    cert_auth: "client-cert-auth",
    crl: "client-crl-file",
    allowed_cn: "client-cert-allowed-cn",
    allowed_hostname: "client-cert-allowed-hostname",
    auto_tls: "auto-tls",
};

const PEER: FlagNames = FlagNames {
    cert: "peer-cert-file",
    key: "peer-key-file",
    trusted_ca: "peer-trusted-ca-file",
    cert_auth: "peer-client-cert-auth",
    crl: "peer-crl-file",
    allowed_cn: "peer-cert-allowed-cn",
    allowed_hostname: "peer-cert-allowed-hostname",
    auto_tls: "peer-auto-tls",
};

impl Settings {
    pub(super) fn client_security(&self) -> Result<TransportSecurity, ServerConfigError> {
        self.transport_security(&CLIENT)
    }

    pub(super) fn peer_security(&self) -> Result<TransportSecurity, ServerConfigError> {
        let mut security = self.transport_security(&PEER)?;
        let (cert, key) = ("peer-client-cert-file", "peer-client-key-file");
        security.settings.dial_certificate = self.path(cert);
        security.settings.dial_key = self.path(key);
        self.check_pair(cert, key)?;
        security.settings.skip_member_binding = self.is_on("peer-skip-client-san-verification")?;
        Ok(security)
    }

    fn transport_security(
        &self,
        names: &FlagNames,
    ) -> Result<TransportSecurity, ServerConfigError> {
        self.check_pair(names.cert, names.key)?;
        let mut settings = TlsSettings::default();
        settings.certificate = self.path(names.cert);
        settings.key = self.path(names.key);
        settings.trusted_ca = self.path(names.trusted_ca);
        settings.client_cert_auth = self.is_on(names.cert_auth)?;
        settings.revocation_list = self.path(names.crl);
        settings.allowed_common_names = self.list(names.allowed_cn)?;
        settings.allowed_host_names = self.list(names.allowed_hostname)?;
        settings.version_min = self.tls_version("tls-min-version")?.unwrap_or_default();
        settings.version_max = self.tls_version("tls-max-version")?;
        settings.cipher_suites = self.cipher_suites()?;
        let auto_tls = self.is_on(names.auto_tls)?;
        if settings.trusted_ca.is_none() {
            let needs_ca = [names.crl, names.allowed_cn, names.allowed_hostname];
            let given = needs_ca.into_iter().find(|name| self.text(name).is_some());
            if let Some(name) = given.or(settings.client_cert_auth.then_some(names.cert_auth)) {
                let expected = format!("--{} with it, to verify certificates", names.trusted_ca);
                let value = self.text(name).unwrap_or_default();
                return Err(ServerConfigError::value(name, value, &expected));
            }
        }
        if !settings.allowed_common_names.is_empty() && !settings.allowed_host_names.is_empty() {
            let expected = format!("only one of it and --{}", names.allowed_cn);
            let value = self.text(names.allowed_hostname).unwrap_or_default();
            return Err(ServerConfigError::value(names.allowed_hostname, value, &expected));
        }
        Ok(TransportSecurity { settings, auto_tls })
    }

    /// A certificate and its key are given together.
    fn check_pair(&self, cert: &str, key: &str) -> Result<(), ServerConfigError> {
        let missing = match (self.text(cert), self.text(key)) {
            (Some(_), None) => (key, cert),
            (None, Some(_)) => (cert, key),
            _ => return Ok(()),
        };
        let expected = format!("a file, since --{} is given", missing.1);
        Err(ServerConfigError::value(missing.0, "", &expected))
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.text(name).map(PathBuf::from)
    }

    /// A list that is given and yet has no items is an error: it would allow everything.
    fn list(&self, name: &str) -> Result<Vec<String>, ServerConfigError> {
        let text = self.text(name).unwrap_or_default();
        let items = text.split(',').map(str::trim).filter(|one| !one.is_empty());
        let items: Vec<String> = items.map(Into::into).collect();
        match items.is_empty() && !text.is_empty() {
            true => Err(ServerConfigError::value(name, text, "a list of names")),
            false => Ok(items),
        }
    }

    fn tls_version(&self, name: &str) -> Result<Option<TlsVersion>, ServerConfigError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let version = TlsVersion::from_name(text);
        version.map(Some).ok_or_else(|| ServerConfigError::value(name, text, "TLS1.2 or TLS1.3"))
    }

    fn cipher_suites(&self) -> Result<Vec<CipherSuite>, ServerConfigError> {
        let name = "cipher-suites";
        let known = || CipherSuite::names().collect::<Vec<_>>().join(", ");
        let suite = |one: &String| {
            let unknown = || ServerConfigError::value(name, one, &format!("some of {}", known()));
            CipherSuite::from_name(one).ok_or_else(unknown)
        };
        self.list(name)?.iter().map(suite).collect()
    }
}

impl ServerConfig {
    /// Every `https` URL has a certificate, and versions and cipher suites fit together.
    pub(super) fn check_transport_security(mut self) -> Result<Self, ServerConfigError> {
        let settings = &self.client_security.settings;
        let has_suites = !settings.cipher_suites.is_empty();
        if settings.version_max.is_some_and(|max| settings.version_min > max) {
            let (name, value) = ("tls-min-version", "TLS1.3");
            return Err(ServerConfigError::value(name, value, "at most --tls-max-version"));
        }
        if settings.version_min == TlsVersion::Tls13 && has_suites {
            let expected = "TLS1.2, since --cipher-suites cannot be used with TLS1.3 alone";
            return Err(ServerConfigError::value("tls-min-version", "TLS1.3", expected));
        }
        for (flag, urls, security, cert, auto) in [
            (
                "listen-client-urls",
                &self.listen_client_urls,
                &self.client_security,
                "cert-file",
                "auto-tls",
            ),
            (
                "listen-client-http-urls",
                &self.listen_client_http_urls,
                &self.client_security,
                "cert-file",
                "auto-tls",
            ),
            (
                "listen-metrics-urls",
                &self.listen_metrics_urls,
                &self.client_security,
                "cert-file",
                "auto-tls",
            ),
            (
                "listen-console-urls",
                &self.listen_console_urls,
                &self.client_security,
                "cert-file",
                "auto-tls",
            ),
            (
                "listen-peer-urls",
                &self.listen_peer_urls,
                &self.peer_security,
                "peer-cert-file",
                "peer-auto-tls",
            ),
        ] {
            let tls = urls.iter().find(|url| url.is_tls());
            if let Some(url) = tls
                && !security.is_configured()
            {
                let expected = format!("--{cert} and its key with an https URL, or --{auto}");
                return Err(ServerConfigError::value(flag, &url.to_string(), &expected));
            }
        }
        let warnings = self.transport_warnings();
        self.warnings.extend(warnings);
        Ok(self)
    }

    /// Certificates that are not used, in etcd's words.
    fn transport_warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for (kind, urls, security) in [
            ("client", &self.listen_client_urls, &self.client_security),
            ("client", &self.listen_client_http_urls, &self.client_security),
            ("peer", &self.listen_peer_urls, &self.peer_security),
        ] {
            for url in urls.iter().filter(|url| !url.is_tls() && security.is_configured()) {
                warnings.push(format!(
                    "the scheme of {kind} URL {url} is HTTP: its connections do not use the \
                     certificate"
                ));
            }
            if security.auto_tls && security.settings.certificate.is_some() {
                warnings.push(format!("a {kind} certificate is given: auto TLS is ignored"));
            }
        }
        warnings
    }

    /// The listeners that programs on other machines can reach, and that do not use TLS.
    pub(crate) fn plaintext_listeners(&self) -> Vec<(&'static str, Url)> {
        self.reachable_listeners(|url, _| !url.is_tls())
    }

    /// The listeners that programs on other machines can reach, and that use TLS without asking
    /// for a certificate.
    pub(crate) fn unverified_listeners(&self) -> Vec<(&'static str, Url)> {
        self.reachable_listeners(|url, security| {
            url.is_tls() && !security.settings.verifies_clients()
        })
    }

    fn reachable_listeners(
        &self,
        is_meant: impl Fn(&Url, &TransportSecurity) -> bool,
    ) -> Vec<(&'static str, Url)> {
        let mut found = Vec::new();
        for (kind, urls, security) in [
            ("client", &self.listen_client_urls, &self.client_security),
            ("client", &self.listen_client_http_urls, &self.client_security),
            ("peer", &self.listen_peer_urls, &self.peer_security),
            ("metrics", &self.listen_metrics_urls, &self.client_security),
            ("console", &self.listen_console_urls, &self.client_security),
        ] {
            let open = urls.iter().filter(|url| !url.is_loopback() && is_meant(url, security));
            found.extend(open.map(|url| (kind, url.clone())));
        }
        found
    }
}
