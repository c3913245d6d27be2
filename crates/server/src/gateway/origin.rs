//! Which HTTP requests are accepted: those for known host names (`--host-whitelist`), and from
//! pages of allowed origins (`--cors`).
//!
//! A browser lets any page send requests to any host, and names the origin of the page in each
//! POST to another host. This server has no pages, so that a request of the gateway with an origin
//! comes from a foreign page, and is refused unless `--cors` allows it. That also holds for a page
//! whose own name was made to resolve to this server (DNS rebinding).

use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    CONTENT_TYPE, HOST, ORIGIN, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use tonic::body::Body;

use crate::config::ServerConfig;
use crate::connections::ClientConnectInfo;

/// The flags that decide.
#[derive(Clone, Debug, Default)]
pub(super) struct AccessControl {
    origins: Vec<String>,
    /// Empty: any host.
    hosts: Vec<String>,
}

impl AccessControl {
    pub(super) fn new(config: &ServerConfig) -> Self {
        Self { origins: config.cors.clone(), hosts: config.host_whitelist.clone() }
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
    pub(super) fn is_foreign(&self, headers: &HeaderMap) -> bool {
        headers.contains_key(ORIGIN) && self.allowed_origin(headers).is_none()
    }

    /// The response to a request that names an unknown host. With TLS, the certificate has the
    /// name.
    pub(super) fn unknown_host(&self, request: &Request<Body>) -> Option<Response<Body>> {
        let info = request.extensions().get::<ClientConnectInfo>();
        if self.hosts.is_empty() || info.is_some_and(ClientConnectInfo::is_secured) {
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

/// The host that a request names, without its port.
fn host_of(request: &Request<Body>) -> String {
    let header = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let authority = request.uri().authority().map(|authority| authority.as_str());
    let host = authority.or(header).unwrap_or_default();
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
            hosts: Vec::new(),
        };
        let mut headers = HeaderMap::new();
        assert!(!origins(&[]).is_foreign(&headers));
        assert_eq!(origins(&["*"]).allowed_origin(&headers).unwrap(), "*");
        headers.insert(ORIGIN, HeaderValue::from_static("https://a.example"));
        assert!(origins(&[]).is_foreign(&headers));
        assert!(origins(&["https://b.example"]).is_foreign(&headers));
        let allowed = origins(&["https://b.example", "https://a.example"]);
        assert_eq!(allowed.allowed_origin(&headers).unwrap(), "https://a.example");
        assert!(!origins(&["*"]).is_foreign(&headers));
        headers.insert(ORIGIN, HeaderValue::from_static("null"));
        assert!(allowed.is_foreign(&headers));
    }
}
