//! Expensive requests, with a client that puts beside them.

use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, RangeRequest, RequestOp, TxnRequest, request_op,
};
use tokio::task::JoinSet;

use crate::cluster::{LoadError, LoadedCluster, Percentiles, PutsBeside, key, put};

/// All keys of the load.
pub(crate) fn all_keys() -> RangeRequest {
    RangeRequest { key: "k".into(), range_end: "l".into(), ..Default::default() }
}

pub(crate) async fn counts(cluster: &LoadedCluster) -> Result<String, LoadError> {
    cluster.fill(200_000).await?;
    let puts = PutsBeside::start(cluster).await?;
    let until = Instant::now() + Duration::from_secs(20);
    let mut clients = JoinSet::new();
    for _ in 0..2 {
        let mut kv = cluster.kv().await?;
        clients.spawn(async move {
            let mut times = Vec::new();
            while Instant::now() < until {
                let count = RangeRequest { count_only: true, ..all_keys() };
                let count = RequestOp { request: Some(request_op::Request::RequestRange(count)) };
                let txn = TxnRequest { success: vec![count; 128], ..Default::default() };
                let began = Instant::now();
                kv.txn(txn).await?;
                times.push(began.elapsed());
            }
            Ok::<_, LoadError>(times)
        });
    }
    let mut times = Vec::new();
    while let Some(done) = clients.join_next().await {
        times.extend(done??);
    }
    let times = Percentiles::of(times);
    Ok(format!("transactions {times}; {}", puts.end().await?))
}

pub(crate) async fn deletes(cluster: &LoadedCluster) -> Result<String, LoadError> {
    let (rounds, keys) = (3, 800_000);
    let mut lines = Vec::new();
    for _ in 0..rounds {
        cluster.fill(keys).await?;
        let puts = PutsBeside::start(cluster).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let all = all_keys();
        let deletion =
            DeleteRangeRequest { key: all.key, range_end: all.range_end, ..Default::default() };
        let began = Instant::now();
        let deleted = cluster.kv().await?.delete_range(deletion).await;
        let took = began.elapsed().as_millis();
        let deleted = deleted.map(|reply| reply.into_inner().deleted);
        tokio::time::sleep(Duration::from_secs(1)).await;
        lines.push(format!("deleted {deleted:?} in {took} ms; {}", puts.end().await?));
    }
    Ok(lines.join("; "))
}

pub(crate) async fn compactions(cluster: &LoadedCluster) -> Result<String, LoadError> {
    cluster.fill(20_000).await?;
    let mut kv = cluster.kv().await?;
    let compacting = tokio::spawn(async move {
        for _ in 0..40 {
            let mut revision = 0;
            for _ in 0..20 {
                let done = kv.put(put("other", 16)).await?.into_inner();
                revision = done.header.ok_or("no header")?.revision;
            }
            kv.compact(CompactionRequest { revision, physical: true }).await?;
        }
        Ok::<(), LoadError>(())
    });
    let mut kv = cluster.kv().await?;
    let (mut ranges, mut compacted) = (0, 0);
    while !compacting.is_finished() {
        ranges += 1;
        match kv.range(all_keys()).await {
            Ok(_) => {}
            Err(error) if error.message().contains("compacted") => compacted += 1,
            Err(error) => return Err(error.into()),
        }
    }
    compacting.await??;
    Ok(format!("{compacted} of {ranges} ranges answered \"compacted\""))
}

pub(crate) async fn overwrites(cluster: &LoadedCluster) -> Result<String, LoadError> {
    let (puts, keys) = (2_685, 151);
    let mut kv = cluster.kv().await?;
    for number in 0..puts {
        let done = kv.put(put(&key(number % keys), 1 << 20)).await?.into_inner();
        if number % 50 == 49 {
            let revision = done.header.ok_or("no header")?.revision;
            kv.compact(CompactionRequest { revision, physical: true }).await?;
        }
    }
    Ok(format!("{puts} puts of 1 MiB to {keys} keys"))
}
