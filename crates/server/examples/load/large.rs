//! Large clients that do nothing wrong, and a member with far too many URLs.

use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb::cluster_client::ClusterClient;
use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    LeaseGrantRequest, LeaseKeepAliveRequest, MemberAddRequest, WatchCreateRequest, WatchRequest,
};
use tokio_stream::StreamExt;

use crate::cluster::{LoadError, LoadedCluster, put};

const COUNT: usize = 100_000;

pub(crate) async fn keep_alives(cluster: &LoadedCluster) -> Result<String, LoadError> {
    let mut client = LeaseClient::new(cluster.channel(0).await?);
    let granted = client.lease_grant(LeaseGrantRequest { id: 0, ttl: 3_600 }).await?.into_inner();
    let requests = vec![LeaseKeepAliveRequest { id: granted.id }; COUNT];
    let began = Instant::now();
    let requests = tokio_stream::iter(requests).chain(tokio_stream::pending());
    let mut answers = client.lease_keep_alive(requests).await?.into_inner();
    for number in 0..COUNT {
        if let Err(error) = answers.message().await {
            return Ok(format!("cut after {number} of {COUNT}: {error}"));
        }
    }
    Ok(format!("{COUNT} keep-alives answered in {} ms", began.elapsed().as_millis()))
}

pub(crate) async fn watches(cluster: &LoadedCluster) -> Result<String, LoadError> {
    let request = |number: usize| {
        let key = format!("watched {number}").into();
        let create = WatchCreateRequest { key, ..Default::default() };
        WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
    };
    let requests: Vec<WatchRequest> = (0..COUNT).map(request).collect();
    let requests = tokio_stream::iter(requests).chain(tokio_stream::pending());
    let mut client = WatchClient::new(cluster.channel(0).await?);
    let began = Instant::now();
    let mut events = client.watch(requests).await?.into_inner();
    for number in 0..COUNT {
        if let Err(error) = events.message().await {
            return Ok(format!("cut after {number} of {COUNT}: {error}"));
        }
    }
    cluster.kv().await?.put(put(&format!("watched {}", COUNT - 1), 1)).await?;
    let event = tokio::time::timeout(Duration::from_secs(60), events.message()).await??;
    let works = event.is_some_and(|event| event.events.len() == 1);
    let took = began.elapsed().as_millis();
    Ok(format!("{COUNT} watches in {took} ms, the last one works: {works}"))
}

pub(crate) async fn urls(cluster: &LoadedCluster) -> Result<String, LoadError> {
    let mut client = ClusterClient::new(cluster.channel(0).await?);
    let peer_urls = (0..40_000).map(|number| format!("http://h{number}:1")).collect();
    let request = MemberAddRequest { peer_urls, is_learner: true };
    let began = Instant::now();
    let answer = match client.member_add(request).await {
        Ok(_) => "accepted".to_owned(),
        Err(error) => format!("{:?}: {}", error.code(), error.message()),
    };
    Ok(format!("{answer} in {} ms", began.elapsed().as_millis()))
}
