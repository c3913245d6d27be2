//! The JSON gateway: every call of etcd's gRPC services and of `quorate.v1` as an HTTP POST with JSON.
//!
//! A request is converted to a gRPC request, which passes the same checks, limits and counters as
//! every other call; its response is converted while it is sent. Which fields a message has comes
//! from the descriptors of the protocol (`docs/decisions/017-the-gateway-converts-with-descriptors.md`).

mod from_json;
mod origin;
mod paths;
mod request;
mod response;
mod schema;
mod to_json;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri, Version,
};
use origin::{AccessControl, allow_origin, preflight_response, text_response};
use paths::{GatewayCall, OVERVIEW, find_path};
use pin_project_lite::pin_project;
use prost::Message;
use quorate_proto::quorate::v1;
use request::{StreamBody, unary_body};
pub(crate) use response::error_response;
use response::json_of;
use schema::SCHEMA;
use to_json::JsonWriter;
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};

use crate::access::{AccessDenied, ClientIdentity};
use crate::client_certificate::ClientCertificate;
use crate::config::ServerConfig;
use crate::connections::ClientConnectInfo;
use crate::context::ServiceContext;
use crate::grpc_guard::is_grpc;
use crate::grpc_timeout::timeout_of;
use crate::status::ServiceError;

/// Serves the gateway, and passes everything else on.
#[derive(Clone)]
pub(crate) struct Gateway<S> {
    inner: S,
    context: ServiceContext,
    access: AccessControl,
    is_enabled: bool,
    /// Whether this is the listener of the console, which serves no gRPC, and nothing that changes
    /// something before there are users to sign in as.
    for_console: bool,
    /// The length of the longest request.
    text_bytes_max: usize,
    /// Names in certificates are not those of users here, so that a client with one is refused.
    refuses_certificates: bool,
}

impl<S> Gateway<S> {
    pub(crate) fn new(
        inner: S,
        context: ServiceContext,
        config: &ServerConfig,
        message_bytes_max: usize,
    ) -> Self {
        Self {
            inner,
            context,
            access: AccessControl::new(config),
            is_enabled: config.enable_grpc_gateway,
            for_console: false,
            // Base64 has four bytes for three.
            text_bytes_max: message_bytes_max / 3 * 4 + TEXT_OVERHEAD_BYTES,
            refuses_certificates: config.client_security.settings.client_cert_auth,
        }
    }
}

impl<S: Clone> Gateway<S> {
    /// The same for `--listen-console-urls`.
    pub(crate) fn for_console(&self) -> Self {
        Self { for_console: true, ..self.clone() }
    }
}

impl<S> Service<Request<Body>> for Gateway<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Clone,
    S: Send + Sync + 'static,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = GatewayFuture<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if is_grpc(request.headers()) && !self.for_console {
            return GatewayFuture::Passed { response: self.inner.call(request) };
        }
        let mut gateway = self.clone();
        let response = async move { Ok(gateway.serve_http(request).await) };
        GatewayFuture::Http { response: Box::pin(response) }
    }
}

impl<S> Gateway<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible> + Send + Sync,
    S::Future: Send,
{
    async fn serve_http(&mut self, request: Request<Body>) -> Response<Body> {
        if let Some(response) = self.access.unknown_host(&request) {
            return response;
        }
        let origin = self.access.allowed_origin(request.headers());
        let refused = match self.has_unused_name(&request) && self.is_auth_enabled().await {
            true => Some(text_response(StatusCode::BAD_REQUEST, format!("{NAME_NOT_USED}\n"))),
            false => preflight_response(&request)
                .or_else(|| self.access.foreign_page(&request))
                .or_else(|| self.refuse_foreign(&request)),
        };
        let mut response = match refused {
            Some(response) => response,
            None => self.dispatch(request).await,
        };
        if let Some(origin) = origin {
            allow_origin(response.headers_mut(), origin);
        }
        response
    }

    fn is_for_gateway(&self, request: &Request<Body>) -> bool {
        self.is_enabled && find_path(request.uri().path()).is_some()
    }

    /// Whether a client of the gateway expects its certificate to name its user.
    fn has_unused_name(&self, request: &Request<Body>) -> bool {
        let info = request.extensions().get::<ClientConnectInfo>();
        let has_name = info.is_some_and(ClientConnectInfo::has_common_name);
        self.refuses_certificates && has_name && self.is_for_gateway(request)
    }

    async fn is_auth_enabled(&self) -> bool {
        self.context.store.read_when_free().await.auth().is_enabled()
    }

    /// The response to a web page that may not use the gateway.
    fn refuse_foreign(&self, request: &Request<Body>) -> Option<Response<Body>> {
        let is_foreign = self.is_for_gateway(request) && self.access.is_foreign(request);
        is_foreign
            .then(|| error_response(&ServiceError::Access(AccessDenied::OriginNotAllowed).into()))
    }

    async fn dispatch(&mut self, request: Request<Body>) -> Response<Body> {
        if self.for_console && is_grpc(request.headers()) {
            let text = "this port serves the console, and no gRPC\n".to_owned();
            return text_response(StatusCode::NOT_FOUND, text);
        }
        let Some(call) = find_path(request.uri().path()).filter(|_| self.is_enabled) else {
            let Ok(response) = self.inner.call(request).await;
            return response;
        };
        let Some(call) = call else {
            return error_response(&ServiceError::GatewayPathNotFound.into());
        };
        if self.for_console && !call.only_reads() && !self.is_auth_enabled().await {
            return error_response(&ServiceError::Access(AccessDenied::ConsoleReadOnly).into());
        }
        if request.method() != Method::POST {
            return error_response(&ServiceError::GatewayMethodNotAllowed.into());
        }
        match self.call_service(call, request).await {
            Ok(response) => response,
            Err(error) => error_response(&error.into()),
        }
    }

    /// Makes the call that a request of the gateway asks for.
    async fn call_service(
        &mut self,
        call: GatewayCall,
        request: Request<Body>,
    ) -> Result<Response<Body>, ServiceError> {
        let deadline = deadline_of(request.headers())?;
        let (mut parts, body) = request.into_parts();
        ClientConnectInfo::unpack(&mut parts.extensions);
        let client = ClientIdentity::from_extensions(&parts.extensions);
        let requests = self.context.awaited_requests.of(client.peer_address);
        let (schema, bytes_max) = (call.schema, self.text_bytes_max);
        let body = match schema.streams_requests {
            true => Body::new(StreamBody::new(body, schema.request, bytes_max, requests)),
            false => unary_body(body, schema.request, bytes_max, &requests).await?,
        };
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        *request.version_mut() = Version::HTTP_2;
        *request.uri_mut() = Uri::from_static(call.method);
        *request.headers_mut() = grpc_headers(&parts.headers);
        *request.extensions_mut() = parts.extensions;
        request.extensions_mut().remove::<ClientCertificate>();
        let answered = async {
            let Ok(response) = self.inner.call(request).await;
            let sleep = deadline.map(|deadline| Box::pin(sleep_until(deadline)));
            json_of(response, schema.response, schema.streams_responses, sleep).await
        };
        match deadline {
            None => Ok(answered.await),
            Some(deadline) if deadline <= Instant::now() => Err(ServiceError::DeadlineExceeded),
            Some(deadline) => {
                timeout_at(deadline, answered).await.map_err(|_| ServiceError::DeadlineExceeded)
            }
        }
    }
}

/// When the time of a request is over. A little before the timer of the transport, which answers
/// in gRPC.
fn deadline_of(headers: &HeaderMap) -> Result<Option<Instant>, ServiceError> {
    let Some(value) = headers.get(GRPC_TIMEOUT) else { return Ok(None) };
    let timeout = timeout_of(headers).ok_or_else(|| {
        let timeout = String::from_utf8_lossy(value.as_bytes()).into_owned();
        ServiceError::BadGatewayTimeout { timeout }
    })?;
    let timeout = timeout.checked_sub(TIMER_STEP).unwrap_or(timeout);
    Ok(Some(Instant::now() + timeout.min(TIMEOUT_MAX)))
}

/// The headers that services read, as metadata. All others stay behind.
fn grpc_headers(headers: &HeaderMap) -> HeaderMap {
    let mut grpc = HeaderMap::new();
    grpc.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    grpc.insert("te", HeaderValue::from_static("trailers"));
    if let Some(token) = headers.get(AUTHORIZATION) {
        grpc.insert(AUTHORIZATION, token.clone());
    }
    for name in FORWARDED {
        if let Some(value) = headers.get(format!("{METADATA_PREFIX}{name}")) {
            grpc.insert(HeaderName::from_static(name), value.clone());
        }
    }
    grpc
}

pin_project! {
    #[project = GatewayFutureState]
    pub(crate) enum GatewayFuture<F> {
        Passed { #[pin] response: F },
        Http { response: BoxFuture<Response<Body>, Infallible> },
    }
}

impl<F> Future for GatewayFuture<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            GatewayFutureState::Passed { response } => response.poll(context),
            GatewayFutureState::Http { response } => response.as_mut().poll(context),
        }
    }
}

/// An overview as the gateway would send it.
pub(crate) fn overview_json(reply: &v1::OverviewReply) -> Option<Vec<u8>> {
    let schema = SCHEMA.method(OVERVIEW)?;
    let mut json = Vec::new();
    let mut writer = JsonWriter::new(schema.response, &mut json);
    writer.write(&reply.encode_to_vec(), &mut json).ok()?;
    writer.finish(&mut json).ok()?;
    Some(json)
}

/// Converts a JSON text to each request of the gateway, and back. For fuzzing.
pub(crate) fn convert_for_fuzzing(text: &[u8]) {
    for call in paths::all() {
        let Ok(bytes) = from_json::encode(call.schema.request, text) else { continue };
        assert!(bytes.len() <= text.len().saturating_mul(5), "far more bytes than text");
        let mut json = Vec::new();
        let mut writer = JsonWriter::new(call.schema.request, &mut json);
        let written = bytes.chunks(7).try_for_each(|piece| writer.write(piece, &mut json));
        let Ok(()) = written.and_then(|()| writer.finish(&mut json)) else { continue };
        let again = from_json::encode(call.schema.request, &json);
        assert_eq!(again.as_ref(), Ok(&bytes), "{}", String::from_utf8_lossy(&json));
    }
}

/// Converts bytes to JSON as if they were each response of the gateway. For fuzzing.
pub(crate) fn read_for_fuzzing(bytes: &[u8]) {
    for call in paths::all() {
        let mut json = Vec::new();
        let mut writer = JsonWriter::new(call.schema.response, &mut json);
        let written = writer.write(bytes, &mut json);
        let _ = written.and_then(|()| writer.finish(&mut json));
    }
}

/// Headers with this prefix are metadata.
const METADATA_PREFIX: &str = "grpc-metadata-";
const FORWARDED: [&str; 4] = ["authorization", "client-api-version", "hasleader", "token"];
const GRPC_TIMEOUT: &str = "grpc-timeout";
const TIMER_STEP: Duration = Duration::from_millis(2);
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 86_400);
/// What the text of a request may have beside its keys and values.
const TEXT_OVERHEAD_BYTES: usize = 64 << 10;
/// etcd's text.
const NAME_NOT_USED: &str = "CommonName of client sending a request against gateway will be \
                             ignored and not used as expected";
