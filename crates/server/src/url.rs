//! Addresses as etcd writes them: `http://host:port`, and `https://host:port` with TLS. Clients can
//! also be served on a socket in a file: `unix://path`, and `unixs://path` with TLS.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The address of a peer or client port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Url {
    tls: bool,
    /// Empty for a socket in a file.
    host: String,
    port: u16,
    /// The file of a socket.
    socket_path: Option<String>,
}

/// Why a text is not accepted as a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// Neither `http://host:port` nor `https://host:port`.
    Malformed,
}

impl Url {
    /// Normalizes the text, so that equal addresses compare equal: hosts in lower case, IPv6
    /// addresses in their shortest form.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Malformed)?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(UrlError::Malformed),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or(UrlError::Malformed)?;
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => in_brackets(address)?,
            None if host.is_empty() || host.contains(INVALID_IN_HOST) => {
                return Err(UrlError::Malformed);
            }
            None => host.to_ascii_lowercase(),
        };
        // Digits only: `parse` would also accept a sign.
        let digits = port.bytes().all(|byte| byte.is_ascii_digit());
        let port = port.parse().ok().filter(|_| digits).ok_or(UrlError::Malformed)?;
        Ok(Self { tls, host, port, socket_path: None })
    }

    /// The same, and sockets in files.
    pub fn parse_for_clients(text: &str) -> Result<Self, UrlError> {
        let (scheme, path) = text.split_once("://").ok_or(UrlError::Malformed)?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "unix" => false,
            "unixs" => true,
            _ => return Self::parse(text),
        };
        if path.is_empty() || path.contains(INVALID_IN_PATH) {
            return Err(UrlError::Malformed);
        }
        Ok(Self { tls, host: String::new(), port: 0, socket_path: Some(path.to_owned()) })
    }

    /// The file of the socket, of a URL that names one.
    pub(crate) fn socket_path(&self) -> Option<&str> {
        self.socket_path.as_deref()
    }

    /// The same scheme and host with another port.
    pub fn with_port(&self, port: u16) -> Self {
        Self { port, ..self.clone() }
    }

    /// Whether its scheme is `https`.
    pub fn is_tls(&self) -> bool {
        self.tls
    }

    /// The host, without the brackets of an IPv6 address.
    pub(crate) fn host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }

    /// Whether only programs on this machine can connect to it.
    pub(crate) fn is_loopback(&self) -> bool {
        let address = self.host().parse::<IpAddr>();
        self.socket_path.is_some()
            || self.host == "localhost"
            || address.is_ok_and(|address| address.is_loopback())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Whether it means all addresses of this machine, which no client could connect to.
    pub(crate) fn is_unspecified(&self) -> bool {
        matches!(self.host.as_str(), "0.0.0.0" | "[::]")
    }

    /// `host:port`, to connect to.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The address as peers use it among themselves: `host:port`, with `https://` before it if
    /// connections to it are secured. Programs that do not know of TLS use the first form only.
    pub(crate) fn peer_address(&self) -> String {
        if self.tls { self.to_string() } else { self.address() }
    }

    /// The socket address to listen on. A host name is looked up.
    pub async fn resolve(&self) -> std::io::Result<SocketAddr> {
        let mut addresses = tokio::net::lookup_host(self.address()).await?;
        addresses.next().ok_or_else(|| std::io::Error::other(format!("{self}: no such host")))
    }
}

/// Characters that no path of a socket contains here: URLs are separated by commas.
const INVALID_IN_PATH: [char; 4] = ['?', '#', ',', '\0'];

/// Characters that no host name contains.
const INVALID_IN_HOST: [char; 9] = [':', '/', '?', '#', '@', ' ', '[', ']', ','];

/// An IPv6 address, with the name of an interface if it has one.
fn in_brackets(text: &str) -> Result<String, UrlError> {
    let (address, zone) = match text.split_once('%') {
        Some((address, zone)) => (address, format!("%{zone}")),
        None => (text, String::new()),
    };
    let address: Ipv6Addr = address.parse().map_err(|_| UrlError::Malformed)?;
    Ok(format!("[{address}{zone}]"))
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.socket_path {
            return write!(f, "{}://{path}", if self.tls { "unixs" } else { "unix" });
        }
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}", self.host, self.port)
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("http://host:port or https://host:port")
    }
}

impl std::error::Error for UrlError {}

/// Joins URLs with commas.
pub(crate) fn join(urls: &[Url]) -> String {
    urls.iter().map(Url::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_addresses_compare_equal() {
        for (one, other) in [
            ("HTTP://Host.Example:2380", "http://host.example:2380"),
            ("http://host:02380/", "http://host:2380"),
            ("HTTPS://A:1", "https://a:1"),
            ("http://[0:0::0:1]:1", "http://[::1]:1"),
            ("http://[FE80::A%eth0]:1", "http://[fe80::a%eth0]:1"),
        ] {
            assert_eq!(Url::parse(one).map(|url| url.to_string()), Ok(other.to_owned()));
        }
        assert_ne!(Url::parse("https://a:1"), Url::parse("http://a:1"));
        assert_ne!(Url::parse("http://a:1"), Url::parse("http://a:2"));
    }

    #[test]
    fn urls_are_parsed_and_printed() {
        for text in ["http://localhost:2379", "https://10.0.0.1:1", "http://[::1]:2380"] {
            assert_eq!(Url::parse(text).map(|url| url.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(Url::parse("http://a:1/").map(|url| url.address()), Ok("a:1".into()));
        assert_eq!(
            Url::parse("https://[::1]:1").map(|url| url.host().to_owned()),
            Ok("::1".into())
        );
        for text in [
            "a:1",
            "http://a",
            "http://:1",
            "http://a:x",
            "http://a:+1",
            "http://a:1/b",
            "http://a:65536",
            "http://[a]:1",
            "http://[::1",
            "http://::1:1",
            "unix://a:1",
        ] {
            assert_eq!(Url::parse(text), Err(UrlError::Malformed), "{text}");
        }
    }

    #[test]
    fn sockets_in_files_are_for_clients_only() {
        for text in ["unix:///run/quorate.sock", "unixs://localhost:2379", "http://a:1"] {
            let url = Url::parse_for_clients(text).unwrap();
            assert_eq!((url.to_string(), url.is_tls()), (text.into(), text.starts_with("unixs")));
        }
        let path = Url::parse_for_clients("unix://a/b.sock").unwrap();
        assert_eq!((path.socket_path(), path.is_loopback()), (Some("a/b.sock"), true));
        for text in ["unix://", "unix://a,b", "unix:a", "http://a"] {
            assert_eq!(Url::parse_for_clients(text), Err(UrlError::Malformed), "{text}");
        }
        assert_eq!(Url::parse("unix:///run/quorate.sock"), Err(UrlError::Malformed));
    }

    #[test]
    fn loopback_addresses_are_recognized() {
        for (text, expected) in [
            ("http://localhost:1", true),
            ("http://127.0.0.7:1", true),
            ("http://[::1]:1", true),
            ("http://0.0.0.0:1", false),
            ("http://[::]:1", false),
            ("http://host:1", false),
        ] {
            assert_eq!(Url::parse(text).map(|url| url.is_loopback()), Ok(expected), "{text}");
        }
    }
}
