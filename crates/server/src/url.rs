//! Addresses as etcd writes them: `http://host:port`.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};

/// The address of a peer or client port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Url {
    host: String,
    port: u16,
}

/// Why a text is not accepted as a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// Only `http` is supported. `https` is refused, since nothing would be encrypted.
    Tls,
    /// Not `http://host:port`.
    Malformed,
}

impl Url {
    /// Normalizes the text, so that equal addresses compare equal: hosts in lower case, IPv6
    /// addresses in their shortest form.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Malformed)?;
        match scheme.to_ascii_lowercase().as_str() {
            "http" => {}
            "https" => return Err(UrlError::Tls),
            _ => return Err(UrlError::Malformed),
        }
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
        Ok(Self { host, port })
    }

    /// The same host with another port.
    pub fn with_port(&self, port: u16) -> Self {
        Self { host: self.host.clone(), port }
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

    /// The socket address to listen on. A host name is looked up.
    pub async fn resolve(&self) -> std::io::Result<SocketAddr> {
        let mut addresses = tokio::net::lookup_host(self.address()).await?;
        addresses.next().ok_or_else(|| std::io::Error::other(format!("{self}: no such host")))
    }
}

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
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls => "http://host:port, TLS is not supported yet",
            Self::Malformed => "http://host:port",
        })
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
            ("http://[0:0::0:1]:1", "http://[::1]:1"),
            ("http://[FE80::A%eth0]:1", "http://[fe80::a%eth0]:1"),
        ] {
            assert_eq!(Url::parse(one).map(|url| url.to_string()), Ok(other.to_owned()));
        }
        assert_eq!(Url::parse("HTTPS://a:1"), Err(UrlError::Tls));
        assert_ne!(Url::parse("http://a:1"), Url::parse("http://a:2"));
    }

    #[test]
    fn urls_are_parsed_and_printed() {
        for text in ["http://localhost:2379", "http://10.0.0.1:1", "http://[::1]:2380"] {
            assert_eq!(Url::parse(text).map(|url| url.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(Url::parse("http://a:1/").map(|url| url.address()), Ok("a:1".into()));
        assert_eq!(Url::parse("https://a:1"), Err(UrlError::Tls));
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
}
