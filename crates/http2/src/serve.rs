//! Runs a connection on a socket: reads, lets calls make progress, and writes, each once per turn.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use crate::application::Application;
use crate::calls::OUTPUT_BYTES_MAX;
use crate::config::ConnectionConfig;
use crate::connection::Http2Connection;
use crate::frame::{ConnectionError, Reason};
use crate::ready::SlotWaker;

/// What an HTTP/2 client sends first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves a connection until the client closes it, it fails, or `stop` completes and all calls have
/// ended. `received` was read from it before: the start of the preface, or more.
pub async fn serve<S, A>(
    socket: S,
    received: Vec<u8>,
    application: A,
    config: ConnectionConfig,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), ServeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
    A: Application,
{
    let connection = Http2Connection::new(application, config);
    let mut stop = std::pin::pin!(stop);
    let mut task = ConnectionTask::new(socket, connection);
    let ended = match task.receive(&received) {
        Ok(()) => poll_fn(|context| task.poll(context, stop.as_mut())).await,
        Err(error) => Err(error),
    };
    let ConnectionTask { mut socket, mut connection, written, .. } = task;
    if let Err(ServeError::Protocol(error)) = &ended {
        connection.fail(*error);
    } else if ended.is_err() {
        return ended;
    }
    let output = std::mem::take(&mut connection.output);
    // Calls in progress are cancelled.
    drop(connection);
    let _ = timeout(LINGER, close(&mut socket, &output[written.min(output.len())..])).await;
    ended
}

/// Writes the rest, and waits until the client closes its side too: closing a socket with unread
/// bytes would discard what the client has not received yet.
async fn close(socket: &mut (impl AsyncRead + AsyncWrite + Unpin), rest: &[u8]) -> io::Result<()> {
    socket.write_all(rest).await?;
    socket.flush().await?;
    socket.shutdown().await?;
    let mut scratch = [0; 4_096];
    for _ in 0..LINGER_READS {
        if socket.read(&mut scratch).await? == 0 {
            break;
        }
    }
    Ok(())
}

/// Why a connection has ended.
#[derive(Debug)]
pub enum ServeError {
    /// The client has broken the protocol or exceeded a limit. It was told.
    Protocol(ConnectionError),
    Socket(io::Error),
    /// The client gave no sign of life.
    TimedOut,
}

impl From<ConnectionError> for ServeError {
    fn from(error: ConnectionError) -> Self {
        Self::Protocol(error)
    }
}

impl From<io::Error> for ServeError {
    fn from(error: io::Error) -> Self {
        Self::Socket(error)
    }
}

impl std::fmt::Display for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Protocol(error) => write!(f, "{error}"),
            Self::Socket(error) => write!(f, "{error}"),
            Self::TimedOut => f.write_str("the client does not answer"),
        }
    }
}

impl std::error::Error for ServeError {}

struct ConnectionTask<S, A: Application> {
    socket: S,
    connection: Http2Connection<A>,
    /// How many bytes of the preface have arrived.
    preface: usize,
    /// How many bytes of the output are written.
    written: usize,
    needs_flush: bool,
    ready: Vec<usize>,
    stop_waker: Arc<SlotWaker>,
    has_stopped: bool,
    timer: Pin<Box<Sleep>>,
    keep_alive: KeepAlive,
    /// When new streams are refused, although the client may not know that the server stops.
    closes_at: Option<Instant>,
}

/// Signs of life of the client.
struct KeepAlive {
    next: Instant,
    /// Whether bytes have arrived since the last check.
    has_received: bool,
    is_awaiting: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin, A: Application> ConnectionTask<S, A> {
    fn new(socket: S, connection: Http2Connection<A>) -> Self {
        let stop_waker = SlotWaker::new(STOP_SLOT, Arc::clone(&connection.ready));
        // It is polled first thing.
        stop_waker.queue();
        let next = Instant::now() + connection.config.keep_alive_interval;
        Self {
            socket,
            connection,
            preface: 0,
            written: 0,
            needs_flush: false,
            ready: Vec::new(),
            stop_waker,
            has_stopped: false,
            timer: Box::pin(sleep_until(next)),
            keep_alive: KeepAlive { next, has_received: false, is_awaiting: false },
            closes_at: None,
        }
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
        mut stop: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Poll<Result<(), ServeError>> {
        self.connection.ready.disarm();
        // Busy calls use up the task's budget. What they leave is written before they run again, and
        // the timer has its turn before them.
        self.poll_write(context)?;
        for _ in 0..TURNS_MAX {
            let mut has_progress = false;
            let may_read = self.has_output_room();
            if may_read {
                match self.poll_read(context)? {
                    Poll::Ready(0) => return Poll::Ready(Ok(())),
                    Poll::Ready(_) => has_progress = true,
                    Poll::Pending => {}
                }
            }
            has_progress |= self.poll_timer(context)?;
            has_progress |= self.poll_calls(stop.as_mut());
            has_progress |= self.poll_write(context)?;
            // What the client has sent meanwhile wakes the task only after another read.
            has_progress |= !may_read && self.has_output_room();
            if self.is_complete() {
                return Poll::Ready(Ok(()));
            }
            if !has_progress && self.connection.ready.arm(context.waker()) {
                self.connection.shrink();
                return Poll::Pending;
            }
        }
        // Other connections first.
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether so little waits to be written that more may be read.
    fn has_output_room(&self) -> bool {
        self.connection.output.len() - self.written < OUTPUT_BYTES_MAX
    }

    /// Whether all calls have ended and no others will come.
    fn is_complete(&self) -> bool {
        let is_last = self.connection.client_is_leaving || self.connection.is_closed();
        is_last && self.connection.open_streams() == 0 && self.connection.output.is_empty()
    }

    /// Returns how many bytes were read; 0 at the end.
    fn poll_read(&mut self, context: &mut Context<'_>) -> Result<Poll<usize>, ServeError> {
        let mut scratch = SCRATCH.take().unwrap_or_else(|| vec![0; READ_BYTES].into());
        let mut buffer = ReadBuf::new(&mut scratch);
        let read = Pin::new(&mut self.socket).poll_read(context, &mut buffer);
        let received = match read {
            Poll::Ready(Ok(())) => {
                let bytes = buffer.filled();
                self.receive(bytes).map(|()| Poll::Ready(bytes.len()))
            }
            Poll::Ready(Err(error)) => Err(error.into()),
            Poll::Pending => Ok(Poll::Pending),
        };
        SCRATCH.set(Some(scratch));
        received
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), ServeError> {
        let mut rest = bytes;
        if self.preface < PREFACE.len() {
            let expected = &PREFACE[self.preface..];
            let (start, after) = rest.split_at(rest.len().min(expected.len()));
            if !expected.starts_with(start) {
                return Err(ConnectionError::protocol("the preface is not that of HTTP/2").into());
            }
            self.preface += start.len();
            rest = after;
        }
        self.keep_alive.has_received |= !bytes.is_empty();
        if !rest.is_empty() {
            self.connection.receive(rest)?;
        }
        Ok(())
    }

    /// Polls all calls that were woken. Whether there were any.
    fn poll_calls(&mut self, stop: Pin<&mut (impl Future<Output = ()> + Send)>) -> bool {
        let mut ready = std::mem::take(&mut self.ready);
        self.connection.ready.take(&mut ready);
        let has_progress = !ready.is_empty();
        let mut stop = Some(stop);
        for slot in ready.drain(..) {
            if slot != STOP_SLOT {
                self.connection.poll_slot(slot);
            } else if let Some(stop) = stop.take()
                && !self.has_stopped
            {
                self.poll_stop(stop);
            }
        }
        self.ready = ready;
        has_progress
    }

    fn poll_stop(&mut self, stop: Pin<&mut (impl Future<Output = ()> + Send)>) {
        self.stop_waker.begin_poll();
        let waker = Waker::from(Arc::clone(&self.stop_waker));
        if stop.poll(&mut Context::from_waker(&waker)).is_ready() {
            self.has_stopped = true;
            self.connection.begin_closing();
            self.closes_at = Some(Instant::now() + CLOSE_TIMEOUT);
        }
    }

    /// Whether something has changed.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Result<bool, ServeError> {
        if self.closes_at.is_some() && self.connection.ping_replied {
            self.closes_at = None;
            self.connection.finish_closing();
        }
        let deadline = self.connection.next_deadline;
        let awaiting = self.connection.awaiting_since.map(|since| since + AWAITING_TIMEOUT);
        let block = self.connection.block_deadline();
        let others = [deadline, self.closes_at, awaiting, block].into_iter().flatten();
        let next = others.fold(self.keep_alive.next, Instant::min);
        // A timer that fires too early costs less than setting it for every call.
        if next < self.timer.deadline() || self.timer.is_elapsed() {
            self.timer.as_mut().reset(next);
        }
        if self.timer.as_mut().poll(context).is_pending() {
            return Ok(false);
        }
        let now = Instant::now();
        self.connection.end_late_calls(now);
        if block.is_some_and(|block| block <= now) {
            let text = "the header block is not complete in time";
            return Err(ConnectionError::new(Reason::ENHANCE_YOUR_CALM, text).into());
        }
        if awaiting.is_some_and(|awaiting| awaiting <= now) {
            self.connection.serve_awaiting();
        }
        if self.closes_at.is_some_and(|closes_at| closes_at <= now) {
            self.closes_at = None;
            self.connection.finish_closing();
        }
        if self.keep_alive.next <= now {
            self.check_alive(now)?;
        }
        Ok(true)
    }

    fn check_alive(&mut self, now: Instant) -> Result<(), ServeError> {
        let config = &self.connection.config;
        let has_received = std::mem::take(&mut self.keep_alive.has_received);
        if has_received {
            self.keep_alive.is_awaiting = false;
            self.keep_alive.next = now + config.keep_alive_interval;
        } else if self.keep_alive.is_awaiting {
            return Err(ServeError::TimedOut);
        } else {
            self.keep_alive.is_awaiting = true;
            self.keep_alive.next = now + config.keep_alive_timeout;
            self.connection.ping();
        }
        Ok(())
    }

    /// Whether calls may go on because of it.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Result<bool, ServeError> {
        let output = &mut self.connection.output;
        while self.written < output.len() {
            let rest = &output[self.written..];
            match Pin::new(&mut self.socket).poll_write(context, rest) {
                Poll::Ready(Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Poll::Ready(Ok(written)) => self.written += written,
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => break,
            }
            self.needs_flush = true;
        }
        if self.written == output.len() {
            output.clear();
            self.written = 0;
            if output.capacity() > OUTPUT_KEPT {
                *output = Vec::new();
            }
        } else if self.written >= OUTPUT_BYTES_MAX {
            output.drain(..self.written);
            self.written = 0;
        }
        if self.needs_flush
            && let Poll::Ready(flushed) = Pin::new(&mut self.socket).poll_flush(context)
        {
            flushed?;
            self.needs_flush = false;
        }
        let has_room = self.connection.output.len() < OUTPUT_BYTES_MAX / 2;
        if has_room && self.connection.send_window > 0 && !self.connection.blocked.is_empty() {
            self.connection.unblock();
            return Ok(true);
        }
        Ok(false)
    }
}

thread_local! {
    /// What a connection has read, until its frames are processed: one buffer for all connections
    /// of a thread.
    static SCRATCH: Cell<Option<Box<[u8]>>> = const { Cell::new(None) };
}

const READ_BYTES: usize = 64 << 10;
/// Turns of one connection before it is the turn of others.
const TURNS_MAX: usize = 16;
/// The buffer for output that a connection keeps.
const OUTPUT_KEPT: usize = 16 << 10;
/// How long calls wait for their message before they are served without it.
const AWAITING_TIMEOUT: Duration = Duration::from_secs(1);
/// No call has this slot.
const STOP_SLOT: usize = usize::MAX;
/// How long a client may take to learn that the server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a connection that has ended waits for the client.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_READS: usize = 256;
