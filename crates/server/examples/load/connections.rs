//! Loads on the level of HTTP/2: streams without a request, responses that are not read,
//! timeouts.

use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use http::Request;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::cluster::{LoadError, LoadedCluster, PutsBeside, key, put};
use crate::requests::all_keys;

async fn connect(address: &str) -> Result<SendRequest<Bytes>, LoadError> {
    let stream = TcpStream::connect(address).await?;
    let mut builder = h2::client::Builder::new();
    builder.initial_max_send_streams(100_000);
    let (client, connection) = builder.handshake(stream).await?;
    tokio::spawn(connection);
    Ok(client.ready().await?)
}

fn head(path: &str, timeout: Option<&str>) -> Result<Request<()>, LoadError> {
    let mut request = Request::post(format!("http://m{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(timeout) = timeout {
        request = request.header("grpc-timeout", timeout);
    }
    Ok(request.body(())?)
}

/// 8 connections to each member open streams for 20 seconds and send only their headers. One that
/// was closed is opened again.
pub(crate) async fn streams(cluster: &LoadedCluster) -> Result<String, LoadError> {
    let puts = PutsBeside::start(cluster).await?;
    let until = Instant::now() + Duration::from_secs(20);
    let mut connections = JoinSet::new();
    for address in &cluster.addresses {
        for _ in 0..8 {
            let address = address.clone();
            connections.spawn(async move {
                let mut opened = 0u64;
                while Instant::now() < until {
                    if let Ok(client) = connect(&address).await {
                        opened += open_streams(client, until).await;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                opened
            });
        }
    }
    let mut opened = 0;
    while let Some(done) = connections.join_next().await {
        opened += done?;
    }
    let memory = cluster.memory_mib();
    Ok(format!("{opened} streams; {}; {memory:?} MiB", puts.end().await?))
}

/// Opens streams until the connection ends. The number of streams.
async fn open_streams(mut client: SendRequest<Bytes>, until: Instant) -> u64 {
    let mut open = Vec::new();
    while Instant::now() < until {
        let wait = tokio::time::timeout(Duration::from_secs(1), client.ready()).await;
        let Ok(Ok(ready)) = wait else { break };
        client = ready;
        let Ok(head) = head("/etcdserverpb.KV/Range", None) else { break };
        let Ok(stream) = client.send_request(head, false) else { break };
        open.push(stream);
        if open.len() % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    open.len() as u64
}

async fn call(
    client: &mut SendRequest<Bytes>,
    path: &str,
    message: &impl Message,
    timeout: Option<&str>,
) -> Result<ResponseFuture, LoadError> {
    *client = client.clone().ready().await?;
    let (reply, mut body) = client.send_request(head(path, timeout)?, false)?;
    let bytes = message.encode_to_vec();
    let length = u32::try_from(bytes.len())?.to_be_bytes();
    // The server may have answered already.
    let _ = body.send_data([&[0][..], &length, &bytes].concat().into(), true);
    Ok(reply)
}

/// Each range is requested on its own connection and never read.
pub(crate) async fn unread(cluster: &LoadedCluster) -> Result<String, LoadError> {
    let mut kv = cluster.kv().await?;
    for number in 0..200 {
        kv.put(put(&key(number), 1 << 20)).await?;
    }
    let before = cluster.memory_mib();
    let mut open = Vec::new();
    let mut largest = before.clone();
    let puts = PutsBeside::start(cluster).await?;
    for _ in 0..90 {
        let mut client = connect(&cluster.addresses[0]).await?;
        let reply = call(&mut client, "/etcdserverpb.KV/Range", &all_keys(), None).await?;
        open.push((client, reply));
    }
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        for (largest, now) in largest.iter_mut().zip(cluster.memory_mib()) {
            *largest = now.max(*largest);
        }
    }
    Ok(format!("{before:?} MiB before, at most {largest:?} MiB; {}", puts.end().await?))
}

pub(crate) async fn timeouts(cluster: &LoadedCluster) -> Result<String, LoadError> {
    let mut outcomes = Vec::new();
    for timeout in ["x", "1s", "1", "123456789S", "-1S", "0S", "0m", "0n", "60S"] {
        let mut client = connect(&cluster.addresses[0]).await?;
        let path = "/etcdserverpb.KV/Put";
        let reply = call(&mut client, path, &put("timeout", 1), Some(timeout)).await?;
        let outcome = match reply.await {
            Ok(reply) => {
                let (parts, mut body) = reply.into_parts();
                let mut headers = parts.headers;
                if !headers.contains_key("grpc-status") {
                    while body.data().await.is_some() {}
                    headers = body.trailers().await?.unwrap_or_default();
                }
                let status = headers.get("grpc-status").and_then(|text| text.to_str().ok());
                format!("{} {}", parts.status.as_u16(), status.unwrap_or("-"))
            }
            Err(error) => error.to_string(),
        };
        outcomes.push(format!("{timeout}: {outcome}"));
    }
    Ok(outcomes.join(", "))
}
