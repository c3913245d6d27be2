//! One connection of the load generator, and the clients that share it.
//!
//! One task owns the socket and all these clients: it reads what has arrived, completes their
//! requests, starts their next ones, and writes them with one system call. Nothing is woken in
//! between. The clock is read once for each batch that arrives: a request starts when the batch
//! with the previous reply was received, so its latency includes what this program takes.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quorate_http2::client::{CallEnd, CallId, CallTarget, UnaryConnection};
use quorate_server::tls::PeerStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::client::{BenchResult, BenchRun, ClosedLoopClient};
use super::reply::{check_message, refusal_text};
use crate::client::ConnectionAddress;

/// Without this pause, a server that refuses immediately would be flooded with requests.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);
const READ_BYTES: usize = 32 << 10;

/// A connection and its clients.
pub(super) struct LoadConnection {
    address: Arc<ConnectionAddress>,
    link: Option<LoadLink>,
    clients: Vec<ClientSlot>,
    /// Clients that want to send their next request, in this order.
    ready: VecDeque<usize>,
    /// Clients that have not finished.
    running: usize,
    run: Arc<BenchRun>,
    result: BenchResult,
    timer: Pin<Box<Sleep>>,
    /// When the connection ends: not later than the first deadline or the end of the first pause.
    timer_at: Instant,
}

/// An open connection.
pub(super) struct LoadLink {
    stream: Box<dyn PeerStream>,
    http: UnaryConnection,
    buffer: Vec<u8>,
    /// Whether the stream may hold bytes back that were written to it.
    must_flush: bool,
}

struct ClientSlot {
    client: ClosedLoopClient,
    state: SlotState,
}

#[derive(Clone, Copy)]
enum SlotState {
    /// In `ready`. Its request began at this time, although it is not sent yet.
    Ready(Instant),
    /// Its request began at this time.
    Waiting(Instant, CallId),
    Paused(Instant),
    Finished,
}

/// What happened on an open connection.
enum LinkEvent {
    Received(usize),
    Lost(String),
    /// Enough was sent that another request may start.
    HasRoom,
    Timer,
}

impl LoadLink {
    pub(super) async fn open(address: &ConnectionAddress) -> io::Result<Self> {
        let mut fields = vec![("user-agent".to_owned(), USER_AGENT.to_owned())];
        fields.extend(address.token.iter().map(|token| ("token".to_owned(), token.clone())));
        let authority = address.authority.clone();
        let target = CallTarget { is_tls: address.tls.is_some(), authority, fields };
        let opened = tokio::time::timeout(address.dial_timeout, async {
            let stream = match &address.tls {
                Some(tls) => tls.connect(&address.authority).await?,
                None => {
                    let stream = TcpStream::connect(&address.authority).await?;
                    stream.set_nodelay(true)?;
                    Box::new(stream)
                }
            };
            let mut link = Self::new(stream, &target);
            link.receive_settings().await?;
            Ok(link)
        });
        let timed_out = |_| io::Error::new(io::ErrorKind::TimedOut, "deadline has elapsed");
        opened.await.map_err(timed_out)?
    }

    fn new(stream: Box<dyn PeerStream>, target: &CallTarget) -> Self {
        let http = UnaryConnection::new(target);
        Self { stream, http, buffer: vec![0; READ_BYTES], must_flush: false }
    }

    /// Waits until the server has said how many calls may be open.
    async fn receive_settings(&mut self) -> io::Result<()> {
        while !self.http.has_settings() {
            match poll_fn(|context| self.poll(context)).await {
                LinkEvent::Received(bytes) => {
                    let received = self.http.receive(&self.buffer[..bytes], |_, _| ());
                    received.map_err(io::Error::other)?;
                }
                LinkEvent::Lost(error) => return Err(io::Error::other(error)),
                LinkEvent::HasRoom | LinkEvent::Timer => {}
            }
        }
        // No call would start or fail on it: there would be one connection after the other.
        if self.http.is_closing() { Err(io::Error::other(self.end_text())) } else { Ok(()) }
    }

    /// Why the server has closed the connection.
    fn end_text(&self) -> String {
        self.http.closing_error().unwrap_or_else(|| "closed by the server".to_owned())
    }

    /// Sends the output, and receives.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<LinkEvent> {
        let lost = |error: io::Error| LinkEvent::Lost(error.to_string());
        let had_room = self.http.has_room();
        while !self.http.output().is_empty() {
            match Pin::new(&mut self.stream).poll_write(context, self.http.output()) {
                Poll::Ready(Ok(0)) => return Poll::Ready(lost(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => {
                    self.http.sent(written);
                    self.must_flush = true;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(lost(error)),
                Poll::Pending => break,
            }
        }
        if self.http.has_room() && !had_room {
            return Poll::Ready(LinkEvent::HasRoom);
        }
        if self.must_flush {
            match Pin::new(&mut self.stream).poll_flush(context) {
                Poll::Ready(Ok(())) => self.must_flush = false,
                Poll::Ready(Err(error)) => return Poll::Ready(lost(error)),
                Poll::Pending => {}
            }
        }
        let mut buffer = ReadBuf::new(&mut self.buffer);
        match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
            Poll::Ready(Ok(())) => Poll::Ready(match buffer.filled().len() {
                0 => LinkEvent::Lost(self.end_text()),
                received => LinkEvent::Received(received),
            }),
            Poll::Ready(Err(error)) => Poll::Ready(lost(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl LoadConnection {
    pub(super) fn new(
        address: Arc<ConnectionAddress>,
        link: LoadLink,
        clients: Vec<ClosedLoopClient>,
        run: Arc<BenchRun>,
    ) -> Self {
        let now = Instant::now();
        let timer_at = now + run.arguments.client.command_timeout;
        let state = SlotState::Ready(now);
        Self {
            address,
            link: Some(link),
            ready: (0..clients.len()).collect(),
            running: clients.len(),
            clients: clients.into_iter().map(|client| ClientSlot { client, state }).collect(),
            run,
            result: BenchResult::new(),
            timer: Box::pin(sleep_until(timer_at)),
            timer_at,
        }
    }

    /// Runs until all clients have finished.
    pub(super) async fn run(mut self) -> BenchResult {
        while self.running > 0 {
            match self.link.take() {
                Some(link) => self.drive(link).await,
                None => self.reconnect().await,
            }
        }
        self.result
    }

    /// Runs the clients until the connection ends or all have finished.
    async fn drive(&mut self, mut link: LoadLink) {
        loop {
            self.start_ready(&mut link.http);
            let is_drained = link.http.is_closing() && link.http.open_calls() == 0;
            if self.running == 0 || is_drained {
                return;
            }
            let timer = &mut self.timer;
            // The timer first: a socket that always has something would leave it no turn.
            let event = poll_fn(|context| match timer.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(LinkEvent::Timer),
                Poll::Pending => link.poll(context),
            });
            match event.await {
                LinkEvent::Received(bytes) => {
                    let LoadLink { http, buffer, .. } = &mut link;
                    if let Err(error) = self.receive(http, &buffer[..bytes]) {
                        self.fail_waiting(&format!("connection error: {error}"));
                        return;
                    }
                }
                LinkEvent::Lost(error) => {
                    self.fail_waiting(&format!("connection error: {error}"));
                    return;
                }
                LinkEvent::HasRoom => {}
                LinkEvent::Timer => self.timer_passed(Some(&mut link.http)),
            }
        }
    }

    /// Connects when a client wants to send. All that wait for it fail with it.
    async fn reconnect(&mut self) {
        let address = Arc::clone(&self.address);
        let mut opening = Box::pin(LoadLink::open(&address));
        loop {
            self.finish_late();
            if self.running == 0 {
                return;
            }
            let wants = !self.ready.is_empty();
            let timer = &mut self.timer;
            let opened = poll_fn(|context| match timer.as_mut().poll(context) {
                Poll::Ready(()) => Poll::Ready(None),
                Poll::Pending if wants => opening.as_mut().poll(context).map(Some),
                Poll::Pending => Poll::Pending,
            });
            match opened.await {
                Some(Ok(link)) => {
                    self.link = Some(link);
                    return;
                }
                Some(Err(error)) => {
                    let now = Instant::now();
                    while let Some(place) = self.ready.pop_front() {
                        self.failed(place, format!("tcp connect error: {error}"), now);
                    }
                    return;
                }
                None => self.timer_passed(None),
            }
        }
    }

    /// Starts the requests for which there is room.
    fn start_ready(&mut self, http: &mut UnaryConnection) {
        self.finish_late();
        while let Some(place) = self.ready.front().copied() {
            let slot = &mut self.clients[place];
            let SlotState::Ready(since) = slot.state else { return };
            if !http.has_room() {
                return;
            }
            let request = slot.client.next_request(&self.run, since.into_std());
            let tag = u32::try_from(place).unwrap_or(u32::MAX);
            let call = http.start(request.path(), tag, |out| request.encode(out));
            let Some(call) = call else { return };
            slot.state = SlotState::Waiting(since, call);
            self.ready.pop_front();
        }
    }

    /// Clients whose next request would begin after the end of the run.
    fn finish_late(&mut self) {
        let until = Instant::from_std(self.run.until);
        while let Some(place) = self.ready.front().copied() {
            match self.clients[place].state {
                SlotState::Ready(since) if since < until => return,
                _ => {}
            }
            self.ready.pop_front();
            self.clients[place].state = SlotState::Finished;
            self.running -= 1;
        }
    }

    fn receive(
        &mut self,
        http: &mut UnaryConnection,
        bytes: &[u8],
    ) -> Result<(), quorate_http2::ConnectionError> {
        let now = Instant::now();
        if now >= self.timer_at {
            // What arrives now is late for some, even if the timer has not fired yet.
            self.timer_passed(Some(http));
        }
        let mut any_succeeded = false;
        let received = http.receive(bytes, |tag, end| {
            let place = tag as usize;
            let outcome = match end {
                CallEnd::Reply(message) => check_message(message),
                end => Err(refusal_text(&end)),
            };
            match outcome {
                Ok(()) => {
                    any_succeeded = true;
                    self.succeeded(place, now);
                }
                Err(text) => self.failed(place, text, now),
            }
        });
        if any_succeeded && self.run.counts_writes() {
            self.run.gaps.succeeded(now.into_std());
        }
        received
    }

    fn succeeded(&mut self, place: usize, now: Instant) {
        let state = &mut self.clients[place].state;
        if let SlotState::Waiting(since, _) = *state {
            self.result.times.record(now - since);
            *state = SlotState::Ready(now);
            self.ready.push_back(place);
        }
    }

    fn failed(&mut self, place: usize, error: String, now: Instant) {
        self.result.failed(error);
        let until = now + PAUSE_AFTER_ERROR;
        self.clients[place].state = SlotState::Paused(until);
        self.wake_at(until);
    }

    /// The connection has ended: the requests that were sent fail.
    fn fail_waiting(&mut self, error: &str) {
        let now = Instant::now();
        for place in 0..self.clients.len() {
            if let SlotState::Waiting(..) = self.clients[place].state {
                self.failed(place, error.to_owned(), now);
            }
        }
    }

    /// Ends requests that took too long, and pauses.
    fn timer_passed(&mut self, mut http: Option<&mut UnaryConnection>) {
        let now = Instant::now();
        let timeout = self.run.arguments.client.command_timeout;
        self.timer_at = now + timeout;
        for place in 0..self.clients.len() {
            let wakes_at = match self.clients[place].state {
                SlotState::Finished => continue,
                SlotState::Ready(since) | SlotState::Waiting(since, _) => since + timeout,
                SlotState::Paused(until) => until,
            };
            if wakes_at > now {
                self.timer_at = self.timer_at.min(wakes_at);
                continue;
            }
            match self.clients[place].state {
                SlotState::Paused(_) => {
                    self.clients[place].state = SlotState::Ready(now);
                    self.ready.push_back(place);
                    continue;
                }
                SlotState::Waiting(_, call) => {
                    if let Some(http) = &mut http {
                        http.cancel(call);
                    }
                }
                SlotState::Ready(_) | SlotState::Finished => {
                    self.ready.retain(|ready| *ready != place);
                }
            }
            self.failed(place, "request timed out".to_owned(), now);
        }
        self.timer.as_mut().reset(self.timer_at);
    }

    fn wake_at(&mut self, at: Instant) {
        if at < self.timer_at {
            self.timer_at = at;
            self.timer.as_mut().reset(at);
        }
    }
}

const USER_AGENT: &str = concat!("quorate/", env!("CARGO_PKG_VERSION"));

#[cfg(test)]
mod tests;
