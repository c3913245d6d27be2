//! The console: a page that shows the cluster and changes its members, and the feed of events
//! that keeps it up to date.
//!
//! The page is plain HTML, CSS and JavaScript in `page/`, compiled into the program. It holds no
//! data: everything that it shows comes from the feed, from calls of the gateway and from
//! `/metrics`, with the token that its user has signed in for. The token stays in the memory of the
//! page, and travels in a header that no foreign page can set; there are no cookies.

mod feed;

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use crate::http::HttpState;

/// The page, its files, and the feed.
pub(crate) fn console_router(state: HttpState) -> Router {
    let mut router = Router::new()
        .route("/console", get(|| async { Redirect::permanent("/console/") }))
        .route("/quorate/v1/events", get(feed::events))
        .with_state(state);
    for file in FILES {
        router = router.route(file.path, get(move || async move { file.response() }));
    }
    router
}

/// Whether only the console's own page may read this path.
pub(crate) fn is_console_path(path: &str) -> bool {
    path == "/quorate/v1/events" || path == "/console" || path.starts_with("/console/")
}

struct PageFile {
    path: &'static str,
    kind: &'static str,
    text: &'static str,
}

impl PageFile {
    fn response(&self) -> Response {
        let headers = [
            (CONTENT_TYPE, self.kind),
            (CONTENT_SECURITY_POLICY, POLICY),
            (X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (X_FRAME_OPTIONS, "DENY"),
            (REFERRER_POLICY, "no-referrer"),
            (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
            (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
            // Another version of the program has another page.
            (CACHE_CONTROL, "no-cache"),
        ];
        (headers, self.text).into_response()
    }
}

macro_rules! page_file {
    ($path:literal, $file:literal, $kind:literal) => {
        PageFile { path: $path, kind: $kind, text: include_str!(concat!("page/", $file)) }
    };
}

const FILES: &[PageFile] = &[
    page_file!("/console/", "index.html", "text/html; charset=utf-8"),
    page_file!("/console/style.css", "style.css", "text/css; charset=utf-8"),
    page_file!("/console/icon.svg", "icon.svg", "image/svg+xml"),
    page_file!("/console/main.js", "main.js", "text/javascript; charset=utf-8"),
    page_file!("/console/api.js", "api.js", "text/javascript; charset=utf-8"),
    page_file!("/console/dom.js", "dom.js", "text/javascript; charset=utf-8"),
    page_file!("/console/model.js", "model.js", "text/javascript; charset=utf-8"),
    page_file!("/console/cluster.js", "cluster.js", "text/javascript; charset=utf-8"),
    page_file!("/console/members.js", "members.js", "text/javascript; charset=utf-8"),
    page_file!("/console/change.js", "change.js", "text/javascript; charset=utf-8"),
    page_file!("/console/timeline.js", "timeline.js", "text/javascript; charset=utf-8"),
    page_file!("/console/keys.js", "keys.js", "text/javascript; charset=utf-8"),
];

/// Scripts and styles of this server only, requests to it only, in no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_and_requests_nothing_elsewhere() {
        let bytes: usize = FILES.iter().map(|file| file.text.len()).sum();
        assert!(bytes < 1 << 20, "{bytes} bytes");
        for file in FILES {
            // The name of the SVG format is no request.
            let text = file.text.replace("http://www.w3.org/2000/svg", "");
            for part in ["http://", "https://", "//cdn", "innerHTML", "eval(", "<style", "style=\""]
            {
                assert!(!text.contains(part), "{part} in {}", file.path);
            }
        }
    }

    #[test]
    fn scripts_that_the_page_uses_are_served() {
        let names: Vec<&str> =
            FILES.iter().filter_map(|file| file.path.strip_prefix("/console/")).collect();
        for file in FILES {
            for used in file.text.split(['"', '\'', '`']).filter(|text| text.ends_with(".js")) {
                assert!(names.contains(&used.trim_start_matches("./")), "{used} in {}", file.path);
            }
        }
    }
}
