//! Which HTTP requests are accepted: those for known host names (`--host-whitelist`), and from
//! pages of allowed origins (`--cors`).
//!
//! A browser lets any page send requests to any host, and names the origin of the page in each
//! POST to another host. The only page of this server is the console: a request of the gateway with
//! another origin than the address that it was sent to comes from a foreign page, and is refused
//! unless `--cors` allows it.
//!
//! A foreign page can make its own name resolve to this server (DNS rebinding), and then both are
//! equal. So the console, its requests and the feed of events are served only under names that are
//! this server's: addresses, `localhost`, the hosts of its URLs and of `--host-whitelist`, and any
//! name with TLS, since the certificate has to be for it.

use std::net::IpAddr;

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    CONTENT_TYPE, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tonic::body::Body;

use crate::config::ServerConfig;
use crate::connections::ClientConnectInfo;
use crate::console::is_console_path;

/// The flags that decide.
#[derive(Clone, Debug, Default)]
pub(super) struct AccessControl {
    origins: Vec<String>,
    /// Empty: any host.
    hosts: Vec<String>,
    /// Names of this server, in lower case.
    own_hosts: Vec<String>,
}

impl AccessControl {
    pub(super) fn new(config: &ServerConfig) -> Self {
        let urls = [
            &config.listen_client_urls,
            &config.listen_console_urls,
            &config.advertise_client_urls,
        ];
        let hosts = urls.into_iter().flatten().map(|url| url.host().to_owned());
        let listed = config.host_whitelist.iter().filter(|host| *host != ANY);
        let own_hosts = hosts.chain(listed.map(|host| host.to_ascii_lowercase())).collect();
        let (origins, hosts) = (config.cors.clone(), config.host_whitelist.clone());
        Self { origins, hosts, own_hosts }
    }

    /// The origin that the response allows.
    pub(super) fn allowed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        if self.origins.iter().any(|origin| origin == ANY) {
            return Some(HeaderValue::from_static(ANY));
        }
        let given = headers.get(ORIGIN)?;
        self.origins.iter().any(|origin| given == origin.as_str()).then(|| given.clone())
    }

    /// Whether a page that may not use the gateway has sent the request.
    pub(super) fn is_foreign(&self, request: &Request<Body>) -> bool {
        let headers = request.headers();
        headers.contains_key(ORIGIN)
            && self.allowed_origin(headers).is_none()
            && !(self.is_own_origin(request) && has_json(headers))
    }

    /// Whether a page that this server has sent has made the request.
    fn is_own_origin(&self, request: &Request<Body>) -> bool {
        let origin = request.headers().get(ORIGIN).and_then(|origin| origin.to_str().ok());
        let scheme = if is_secured(request) { "https://" } else { "http://" };
        let authority = origin.and_then(|origin| origin.strip_prefix(scheme));
        let is_same = authority.is_some_and(|authority| authority == authority_of(request));
        is_same && self.is_own_host(request)
    }

    fn is_own_host(&self, request: &Request<Body>) -> bool {
        let host = host_of(request).to_ascii_lowercase();
        is_secured(request)
            || host == "localhost"
            || host.parse::<IpAddr>().is_ok()
            || self.own_hosts.contains(&host)
    }

    /// The response to a request for the console or its feed that another page has made, or that
    /// names a host that may not be this server.
    pub(super) fn foreign_page(&self, request: &Request<Body>) -> Option<Response<Body>> {
        if !is_console_path(request.uri().path()) {
            return None;
        }
        let site = request.headers().get("sec-fetch-site");
        let is_navigation =
            request.headers().get("sec-fetch-mode").is_some_and(|m| m == "navigate");
        if site.is_some_and(|site| site == "cross-site" || site == "same-site") && !is_navigation {
            let text = "only the console's own page may read this\n".to_owned();
            return Some(text_response(StatusCode::FORBIDDEN, text));
        }
        if self.is_own_host(request) {
            return None;
        }
        let host = host_of(request);
        let text = format!(
            "the console is not served under the name {host:?}: use an address, a name in \
             --advertise-client-urls, --listen-client-urls or --host-whitelist, or TLS\n"
        );
        Some(text_response(StatusCode::MISDIRECTED_REQUEST, text))
    }

    /// The response to a request that names an unknown host. With TLS, the certificate has the
    /// name.
    pub(super) fn unknown_host(&self, request: &Request<Body>) -> Option<Response<Body>> {
        if self.hosts.is_empty() || is_secured(request) {
            return None;
        }
        let host = host_of(request);
        if self.hosts.iter().any(|known| known == ANY || *known == host) {
            return None;
        }
        tracing::warn!(host, "rejected an HTTP request: its host is not in --host-whitelist");
        let text = format!(
            "this server does not serve the host {host:?}: start it with --host-whitelist \
             {host:?}, or use TLS (see CVE-2018-5702)\n"
        );
        Some(text_response(StatusCode::MISDIRECTED_REQUEST, text))
    }
}

fn is_secured(request: &Request<Body>) -> bool {
    let info = request.extensions().get::<ClientConnectInfo>();
    info.is_some_and(ClientConnectInfo::is_secured)
}

/// A foreign page cannot send this type without asking first.
fn has_json(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json")
}

/// The host and port that a request names.
fn authority_of(request: &Request<Body>) -> &str {
    let header = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let authority = request.uri().authority().map(|authority| authority.as_str());
    authority.or(header).unwrap_or_default()
}

/// The host that a request names, without its port.
fn host_of(request: &Request<Body>) -> String {
    let host = authority_of(request);
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    // `[::1]:2379`, and not `::1`, where the colon separates no port.
    let is_bare_ipv6 = name.contains(':') && !name.starts_with('[');
    let name = if is_bare_ipv6 { host } else { name };
    name.trim_start_matches('[').trim_end_matches(']').to_owned()
}

/// A browser that asks before it sends a request. As in etcd, any OPTIONS is answered so.
pub(super) fn preflight_response(request: &Request<Body>) -> Option<Response<Body>> {
    (request.method() == Method::OPTIONS).then(|| Response::new(Body::default()))
}

/// Lets pages of this origin read the response.
pub(super) fn allow_origin(headers: &mut HeaderMap, origin: HeaderValue) {
    let methods = HeaderValue::from_static("POST, GET, OPTIONS, PUT, DELETE");
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    let names = HeaderValue::from_static("accept, content-type, authorization");
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names);
}

pub(super) fn text_response(code: StatusCode, text: String) -> Response<Body> {
    let mut response = Response::new(Body::new(text));
    *response.status_mut() = code;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    let options = HeaderValue::from_static("nosniff");
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, options);
    response
}

/// Any host, or any origin.
const ANY: &str = "*";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_compared_without_their_ports() {
        for (host, name) in [
            ("a.example:2379", "a.example"),
            ("a.example", "a.example"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("[::1]:2379", "::1"),
            ("[::1]", "::1"),
            ("::1", "::1"),
            ("", ""),
        ] {
            let request = Request::builder().header(HOST, host).body(Body::default()).unwrap();
            assert_eq!(host_of(&request), name, "{host}");
        }
    }

    #[test]
    fn only_listed_origins_are_allowed() {
        let origins = |list: &[&str]| AccessControl {
            origins: list.iter().map(|origin| (*origin).to_owned()).collect(),
            ..AccessControl::default()
        };
        let is_foreign = |access: AccessControl, headers: &HeaderMap| {
            let mut request = Request::new(Body::default());
            *request.headers_mut() = headers.clone();
            access.is_foreign(&request)
        };
        let mut headers = HeaderMap::new();
        assert!(!is_foreign(origins(&[]), &headers));
        assert_eq!(origins(&["*"]).allowed_origin(&headers).unwrap(), "*");
        headers.insert(ORIGIN, HeaderValue::from_static("https://a.example"));
        assert!(is_foreign(origins(&[]), &headers));
        assert!(is_foreign(origins(&["https://b.example"]), &headers));
        let allowed = origins(&["https://b.example", "https://a.example"]);
        assert_eq!(allowed.allowed_origin(&headers).unwrap(), "https://a.example");
        assert!(!is_foreign(origins(&["*"]), &headers));
        headers.insert(ORIGIN, HeaderValue::from_static("null"));
        assert!(is_foreign(allowed, &headers));
    }

    #[test]
    fn only_pages_under_names_of_this_server_are_its_own() {
        let access = AccessControl { own_hosts: vec!["m1.example".into()], ..Default::default() };
        let request = |host: &str, origin: &str, kind: &'static str| {
            let request = Request::builder().header(HOST, host).header(ORIGIN, origin);
            request.header(CONTENT_TYPE, kind).body(Body::default()).unwrap()
        };
        let json = "application/json";
        for (host, origin, kind, is_foreign) in [
            ("10.0.0.1:2379", "http://10.0.0.1:2379", json, false),
            ("[::1]:2379", "http://[::1]:2379", json, false),
            ("localhost:2379", "http://localhost:2379", json, false),
            ("m1.example:2379", "http://m1.example:2379", json, false),
            // A browser sends this type without asking first.
            ("10.0.0.1:2379", "http://10.0.0.1:2379", "text/plain", true),
            // Other ports and schemes are other origins.
            ("10.0.0.1:2379", "http://10.0.0.1:80", json, true),
            ("10.0.0.1:2379", "https://10.0.0.1:2379", json, true),
            ("10.0.0.1:2379", "null", json, true),
            // A name that was made to resolve to this server.
            ("evil.example:2379", "http://evil.example:2379", json, true),
            ("localhost.evil.example", "http://localhost.evil.example", json, true),
        ] {
            let request = request(host, origin, kind);
            assert_eq!(access.is_foreign(&request), is_foreign, "{host} {origin} {kind}");
        }
    }
}
