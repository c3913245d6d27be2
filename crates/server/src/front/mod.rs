//! The ports for clients: finds out which protocol a connection uses, and serves it. HTTP/2 is
//! served by `quorate-http2`, on which most calls of KV skip the layers of general HTTP; HTTP/1 by
//! tonic's server.

mod application;
#[cfg(feature = "counted-calls")]
pub mod counted;
mod unary;

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::time::Duration;

use quorate_http2::{ConnectionConfig, PREFACE};
use tokio::io::AsyncReadExt;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::transport::Server;

use crate::metrics::MeteredConnection;
use application::ClientApplication;
pub(crate) use unary::UnaryCalls;

/// Serves the connections of one port until it is told to stop, and then the requests in progress.
pub(crate) struct Front<S> {
    /// Serves all requests.
    pub(crate) router: S,
    /// Serves complete unary calls of KV. `None` if all are served by the router.
    pub(crate) unary: Option<UnaryCalls>,
    pub(crate) streams_max: u32,
    pub(crate) stopping: watch::Receiver<bool>,
}

impl<S> Front<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
{
    pub(crate) async fn serve(
        self,
        incoming: impl Stream<Item = io::Result<MeteredConnection>> + Send,
    ) {
        let (http1, http1_connections) = mpsc::channel(1);
        let router = self.router.clone();
        let http1_served = Server::builder().accept_http1(true).serve_with_incoming_shutdown(
            router,
            ReceiverStream::new(http1_connections),
            stopped(self.stopping.clone()),
        );
        let http2_served = self.serve_http2(incoming, http1);
        let (served, ()) = tokio::join!(http1_served, http2_served);
        if let Err(error) = served {
            tracing::error!(%error, "HTTP/1 is no longer served on a port");
        }
    }

    async fn serve_http2(
        self,
        incoming: impl Stream<Item = io::Result<MeteredConnection>> + Send,
        http1: mpsc::Sender<io::Result<MeteredConnection>>,
    ) {
        let mut incoming = Box::pin(incoming);
        let mut stopped = std::pin::pin!(stopped(self.stopping.clone()));
        // Dropping it ends all connections.
        let mut connections = JoinSet::new();
        loop {
            let connection = tokio::select! {
                () = &mut stopped => break,
                Some(_) = connections.join_next() => continue,
                next = incoming.next() => match next {
                    Some(Ok(connection)) => connection,
                    Some(Err(_)) => continue,
                    None => break,
                },
            };
            // A connection limits its turns itself. tokio's budget would let all but the first of
            // many calls wait.
            let served = self.serve_connection(connection, http1.clone());
            connections.spawn(tokio::task::unconstrained(served));
        }
        // The port is closed at once.
        drop((incoming, http1));
        while connections.join_next().await.is_some() {}
    }

    fn serve_connection(
        &self,
        mut connection: MeteredConnection,
        http1: mpsc::Sender<io::Result<MeteredConnection>>,
    ) -> impl Future<Output = ()> + Send + use<S> {
        let application = ClientApplication::new(
            self.router.clone(),
            self.unary.clone(),
            tonic::transport::server::Connected::connect_info(&connection),
        );
        let config = ConnectionConfig {
            streams_max: self.streams_max,
            header_bytes_max: HEADER_BYTES_MAX,
            stream_window: STREAM_WINDOW_BYTES,
            connection_window: CONNECTION_WINDOW_BYTES,
            keep_alive_interval: KEEP_ALIVE_INTERVAL,
            ..ConnectionConfig::default()
        };
        let stopping = self.stopping.clone();
        async move {
            let found = tokio::select! {
                found = find_out_protocol(&mut connection) => found,
                // It has asked for nothing yet.
                () = stopped(stopping.clone()) => return,
            };
            let Ok(Some((protocol, received))) = found else { return };
            match protocol {
                Protocol::Http1 => {
                    let _ = http1.send(Ok(connection.with_unread(received))).await;
                }
                Protocol::Http2 => {
                    drop(http1);
                    let served = quorate_http2::serve(
                        connection,
                        received,
                        application,
                        config,
                        stopped(stopping),
                    );
                    if let Err(error) = served.await {
                        tracing::debug!(%error, "a client connection has ended");
                    }
                }
            }
        }
    }
}

async fn stopped(mut stopping: watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// The protocol of a connection, and what had to be read of it. `None` if it ends before that.
async fn find_out_protocol(
    connection: &mut MeteredConnection,
) -> io::Result<Option<(Protocol, Vec<u8>)>> {
    let mut received = Vec::new();
    while received.len() < PREFACE.len() {
        let mut buffer = [0; PREFACE.len()];
        let rest = &mut buffer[received.len()..];
        let count = connection.read(rest).await?;
        if count == 0 {
            return Ok(None);
        }
        received.extend_from_slice(&rest[..count]);
        if !PREFACE.starts_with(&received) {
            return Ok(Some((Protocol::Http1, received)));
        }
    }
    Ok(Some((Protocol::Http2, received)))
}

const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// What a client may send on a stream, and on a connection, before the server has read it.
const STREAM_WINDOW_BYTES: u32 = 128 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;
const HEADER_BYTES_MAX: u32 = 16 << 10;
