//! The audit log: who called what, on which keys, with which result. One JSON object per line.
//!
//! It contains no values, passwords or tokens. When it cannot be written as fast as calls come
//! in, entries are left out, and the next line says how many.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use axum::http::{Request, Response};
use serde_json::{Map, Value, json};
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};

use crate::access::{AccessMode, ClientAction, ClientIdentity};
use crate::context::ServiceContext;
use crate::logs::{LOG_DECIMALS, timestamp};
use crate::status::ServiceError;

/// What is known about one call. Filled while the call is handled.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditEntry {
    pub(crate) client: Option<SocketAddr>,
    pub(crate) user: Option<String>,
    pub(crate) ranges: Vec<AuditRange>,
    /// The revision of the response.
    pub(crate) revision: Option<i64>,
    /// A service has handled the call.
    is_noted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditRange {
    mode: AccessMode,
    key: String,
    range_end: String,
}

tokio::task_local! {
    /// The entry of the call that this task handles.
    static CALL: SharedEntry;
}

/// The call that is handled, and whoever writes its line, share the entry. Each holds the lock
/// only to change it.
type SharedEntry = Arc<Mutex<AuditEntry>>;

/// Notes something about the call in progress. Without an audit log this does nothing.
pub(crate) fn note(note: impl FnOnce(&mut AuditEntry)) {
    let _ = CALL.try_with(|entry| note(&mut locked(entry)));
}

fn locked(entry: &Mutex<AuditEntry>) -> MutexGuard<'_, AuditEntry> {
    entry.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes the client and the keys of a call.
pub(crate) fn note_action(client: &ClientIdentity, action: &ClientAction<'_>) {
    note(|entry| *entry = AuditEntry::of(client, action));
}

impl AuditEntry {
    fn of(client: &ClientIdentity, action: &ClientAction<'_>) -> Self {
        let accesses = action.key_accesses().into_iter().take(RANGES_MAX);
        let ranges = accesses.map(|access| AuditRange {
            mode: access.mode,
            key: shown(access.key),
            range_end: shown(access.range_end),
        });
        let (client, ranges) = (client.peer_address, ranges.collect());
        Self { client, ranges, is_noted: true, ..Self::default() }
    }
}

impl ServiceContext {
    /// Writes an entry for a watch that a client creates on an open stream.
    pub(crate) async fn audit_watch(
        &self,
        client: &ClientIdentity,
        action: &ClientAction<'_>,
        refused: Option<&ServiceError>,
    ) {
        let Some(log) = &self.audit_log else { return };
        let mut entry = AuditEntry::of(client, action);
        entry.user = self.identify(client).await.ok().flatten().map(|identity| identity.name);
        let code = refused.map_or(Code::Ok, |error| error.code_and_text().0);
        log.write(WATCH_CREATE, &entry, code);
    }
}

/// A call whose line is not written yet. A call that is dropped before it has a result was
/// cancelled: by its client, or because the connection ended.
struct PendingLine {
    log: Arc<AuditLog>,
    path: String,
    entry: SharedEntry,
    is_written: bool,
}

impl PendingLine {
    fn write(&mut self, code: Code) {
        self.is_written = true;
        let entry = locked(&self.entry);
        // Pages such as /health are not calls of a user.
        if entry.is_noted {
            self.log.write(&self.path, &entry, code);
        }
    }
}

impl Drop for PendingLine {
    fn drop(&mut self) {
        if !self.is_written {
            self.write(Code::Cancelled);
        }
    }
}

/// A service whose calls are written to the audit log, if there is one.
#[derive(Clone)]
pub(crate) struct AuditedService<S> {
    inner: S,
    log: Option<Arc<AuditLog>>,
}

impl<S> AuditedService<S> {
    pub(crate) fn new(inner: S, log: Option<Arc<AuditLog>>) -> Self {
        Self { inner, log }
    }
}

impl<S> Service<Request<Body>> for AuditedService<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = AuditedFuture<S::Future, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(log) = self.log.clone() else {
            return AuditedFuture::Plain { response: self.inner.call(request) };
        };
        let path = request.uri().path().to_owned();
        let entry = SharedEntry::default();
        let mut line = PendingLine { log, path, entry: Arc::clone(&entry), is_written: false };
        let response = CALL.scope(entry, self.inner.call(request));
        let response = Box::pin(async move {
            let response = response.await?;
            // A status in the headers is that of a call that failed; otherwise it follows later.
            let status = response.headers().get("grpc-status");
            let status = status.map(|code| Code::from_bytes(code.as_bytes()));
            let of_page = response.extensions().get::<Code>().copied();
            line.write(status.or(of_page).unwrap_or(Code::Ok));
            Ok(response)
        });
        AuditedFuture::Audited { response }
    }
}

pin_project_lite::pin_project! {
    #[project = AuditedFutureState]
    pub(crate) enum AuditedFuture<F, E> {
        Plain { #[pin] response: F },
        Audited { response: BoxFuture<Response<Body>, E> },
    }
}

impl<F, E> Future for AuditedFuture<F, E>
where
    F: Future<Output = Result<Response<Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            AuditedFutureState::Plain { response } => response.poll(context),
            AuditedFutureState::Audited { response } => response.as_mut().poll(context),
        }
    }
}

/// A file that entries are appended to, by a thread of its own.
#[derive(Debug)]
pub(crate) struct AuditLog {
    lines: SyncSender<String>,
    rate: Mutex<LineRate>,
    left_out: AtomicU64,
}

#[derive(Debug)]
struct LineRate {
    second: Instant,
    written: u32,
}

impl AuditLog {
    pub(crate) fn open(path: &Path) -> io::Result<Arc<Self>> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let (lines, receiver) = sync_channel(LINES_QUEUED_MAX);
        std::thread::Builder::new()
            .name("audit-log".into())
            .spawn(move || write_lines(file, &receiver))?;
        let rate = Mutex::new(LineRate { second: Instant::now(), written: 0 });
        Ok(Arc::new(Self { lines, rate, left_out: AtomicU64::new(0) }))
    }

    /// Writes an entry, unless there are too many.
    pub(crate) fn write(&self, call: &str, entry: &AuditEntry, code: Code) {
        if !self.is_within_rate() {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut line = Map::new();
        line.insert("ts".into(), timestamp(SystemTime::now(), LOG_DECIMALS).into());
        line.insert("call".into(), call.into());
        line.insert("user".into(), entry.user.clone().map_or(Value::Null, Value::from));
        let client = entry.client.map(|client| client.to_string());
        line.insert("client".into(), client.map_or(Value::Null, Value::from));
        let ranges = entry.ranges.iter().map(AuditRange::json).collect();
        line.insert("ranges".into(), Value::Array(ranges));
        line.insert("result".into(), format!("{code:?}").into());
        line.insert("revision".into(), entry.revision.map_or(Value::Null, Value::from));
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            line.insert("left_out".into(), left_out.into());
        }
        if self.lines.try_send(Value::Object(line).to_string()).is_err() {
            self.left_out.fetch_add(left_out + 1, Ordering::Relaxed);
        }
    }

    fn is_within_rate(&self) -> bool {
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now.duration_since(rate.second) >= Duration::from_secs(1) {
            *rate = LineRate { second: now, written: 0 };
        }
        rate.written += 1;
        rate.written <= LINES_PER_SECOND_MAX
    }
}

impl AuditRange {
    fn json(&self) -> Value {
        let mode = match self.mode {
            AccessMode::Read => "read",
            AccessMode::Write => "write",
        };
        json!({ "mode": mode, "key": self.key, "range_end": self.range_end })
    }
}

/// The beginning of a key, as text.
fn shown(key: &[u8]) -> String {
    let beginning = key.get(..KEY_BYTES_MAX).unwrap_or(key);
    let mut text = String::from_utf8_lossy(beginning).into_owned();
    if beginning.len() < key.len() {
        text.push('…');
    }
    text
}

fn write_lines(file: File, lines: &Receiver<String>) {
    let mut file = BufWriter::new(file);
    while let Ok(line) = lines.recv() {
        let mut next = Some(line);
        let mut written = Ok(());
        while let Some(line) = next {
            written = written.and_then(|()| writeln!(file, "{line}"));
            next = lines.try_recv().ok();
        }
        if let Err(error) = written.and_then(|()| file.flush()) {
            tracing::error!(%error, "the audit log cannot be written");
        }
    }
}

/// The name of entries for watches on an open stream.
const WATCH_CREATE: &str = "/etcdserverpb.Watch/Watch#create";
/// Ranges of one call that are listed.
const RANGES_MAX: usize = 16;
const KEY_BYTES_MAX: usize = 128;
const LINES_PER_SECOND_MAX: u32 = 5_000;
const LINES_QUEUED_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Notes its call, and then responds or waits for ever.
    #[derive(Clone)]
    struct Noting {
        responds: bool,
    }

    impl Service<Request<Body>> for Noting {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = BoxFuture<Response<Body>, Infallible>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            let responds = self.responds;
            Box::pin(async move {
                if request.uri().path() != "/health" {
                    note_action(&ClientIdentity::default(), &ClientAction::Compact);
                    note(|entry| entry.user = Some("alice".into()));
                }
                if !responds {
                    std::future::pending::<()>().await;
                }
                Ok(Response::new(Body::default()))
            })
        }
    }

    #[tokio::test]
    async fn a_call_that_its_client_cancels_has_a_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.json");
        let log = AuditLog::open(&path).unwrap();
        for (responds, page) in [(true, "/call"), (false, "/call"), (false, "/health")] {
            let mut service = AuditedService::new(Noting { responds }, Some(Arc::clone(&log)));
            let request = Request::get(page).body(Body::default()).unwrap();
            let call = service.call(request);
            // When the time is over, the call is dropped, as when its client hangs up.
            let ended = tokio::time::timeout(Duration::from_millis(20), call).await;
            assert_eq!(ended.is_ok(), responds);
        }
        drop(log);
        let lines = || std::fs::read_to_string(&path).unwrap();
        while lines().lines().count() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let parsed: Vec<Value> =
            lines().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let results: Vec<_> = parsed.iter().map(|line| &line["result"]).collect();
        assert_eq!(results, ["Ok", "Cancelled"]);
        assert!(parsed.iter().all(|line| line["user"] == "alice" && line["call"] == "/call"));
    }
}
