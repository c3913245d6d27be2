//! The playground page: stories about clusters in the browser. Static files that know nothing of
//! this server. The folder `playground` of this crate is the whole page; any web server can serve
//! it. `scripts/playground.sh` builds its program from `crates/playground`.

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{Extensions, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;

use crate::access::ClientAction;
use crate::http::HttpState;

/// Nothing is loaded from elsewhere, and nothing is sent anywhere.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; \
     style-src 'self'; connect-src 'self'; worker-src 'self'; img-src data:; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'";

/// Name, type and content.
type PageFile = (&'static str, &'static str, &'static [u8]);

const FILES: &[PageFile] = &[
    ("", "text/html; charset=utf-8", include_bytes!("../playground/index.html")),
    ("index.html", "text/html; charset=utf-8", include_bytes!("../playground/index.html")),
    ("style.css", "text/css; charset=utf-8", include_bytes!("../playground/style.css")),
    ("app.js", "text/javascript; charset=utf-8", include_bytes!("../playground/app.js")),
    ("worker.js", "text/javascript; charset=utf-8", include_bytes!("../playground/worker.js")),
    ("playground.wasm", "application/wasm", include_bytes!("../playground/playground.wasm")),
];

pub(crate) fn router(state: HttpState) -> Router {
    Router::new()
        .route("/playground", get(|| async { Redirect::permanent("/playground/") }))
        .route("/playground/", get(index))
        .route("/playground/{file}", get(file))
        .with_state(state)
}

async fn index(State(state): State<HttpState>, extensions: Extensions) -> Response {
    respond(&state, &extensions, "")
}

async fn file(
    State(state): State<HttpState>,
    extensions: Extensions,
    Path(name): Path<String>,
) -> Response {
    respond(&state, &extensions, &name)
}

fn respond(state: &HttpState, extensions: &Extensions, name: &str) -> Response {
    if let Some(denied) = state.denied(extensions, &ClientAction::Version) {
        return denied;
    }
    let Some((_, content_type, content)) = FILES.iter().find(|(known, ..)| *known == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, *content_type),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, *content).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small() {
        let size = |wasm: bool| {
            let files = FILES.iter().filter(|(name, ..)| name.ends_with(".wasm") == wasm);
            files.map(|(_, _, content)| content.len()).sum::<usize>()
        };
        assert!(size(false) < 1_000_000, "{}", size(false));
        assert!(size(false) + size(true) < 3_000_000, "{}", size(false) + size(true));
        assert!(FILES.iter().any(|(_, _, content)| content.starts_with(b"\0asm")));
    }

    /// Everything that the page names is served, and it names nothing elsewhere.
    #[test]
    fn the_page_needs_only_its_own_files() {
        let texts = FILES.iter().filter(|(name, ..)| !name.ends_with(".wasm"));
        for (name, _, content) in texts {
            let text = String::from_utf8_lossy(content);
            assert!(!text.contains("http://") && !text.contains("https://"), "{name}");
        }
        let index = String::from_utf8_lossy(FILES[0].2);
        for needed in ["style.css", "app.js"] {
            assert!(index.contains(needed) && FILES.iter().any(|(name, ..)| *name == needed));
        }
    }
}
