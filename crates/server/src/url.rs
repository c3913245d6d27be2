//! Addresses as etcd writes them: `http://host:port`.

use std::fmt;
use std::net::SocketAddr;

/// Where a member or a client port is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Url {
    host: String,
    port: u16,
}

/// Why a text is no address of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UrlError {
    /// Only `http` is served: with `https` nobody would be protected.
    Tls,
    /// Not `http://host:port`.
    Malformed,
}

impl Url {
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let rest = match text.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => return Err(UrlError::Tls),
            _ => return Err(UrlError::Malformed),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = rest.rsplit_once(':').ok_or(UrlError::Malformed)?;
        let in_brackets = host.starts_with('[') && host.ends_with(']');
        let plain = !host.contains([':', '/', '?', '#', '@', ' ', '[', ']', ',']);
        if host.is_empty() || !(in_brackets || plain) {
            return Err(UrlError::Malformed);
        }
        let port = port.parse().map_err(|_| UrlError::Malformed)?;
        Ok(Self { host: host.to_owned(), port })
    }

    /// The same host on the port that was really taken.
    pub fn with_port(&self, port: u16) -> Self {
        Self { host: self.host.clone(), port }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// `host:port`, as connections are made to it.
    pub fn address(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Where to listen. A name is looked up.
    pub async fn resolve(&self) -> std::io::Result<SocketAddr> {
        let mut found = tokio::net::lookup_host(self.address()).await?;
        found.next().ok_or_else(|| std::io::Error::other(format!("{self}: no such host")))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls => "http://host:port, TLS is not served yet",
            Self::Malformed => "http://host:port",
        })
    }
}

impl std::error::Error for UrlError {}

/// As one line, separated by commas.
pub(crate) fn join(urls: &[Url]) -> String {
    urls.iter().map(Url::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["http://localhost:2379", "http://10.0.0.1:1", "http://[::1]:2380"] {
            assert_eq!(Url::parse(text).map(|url| url.to_string()), Ok(text.to_owned()));
        }
        assert_eq!(Url::parse("http://a:1/").map(|url| url.address()), Ok("a:1".into()));
        assert_eq!(Url::parse("https://a:1"), Err(UrlError::Tls));
        for text in ["a:1", "http://a", "http://:1", "http://a:x", "http://a:1/b", "http://a:65536"]
        {
            assert_eq!(Url::parse(text), Err(UrlError::Malformed), "{text}");
        }
    }
}
