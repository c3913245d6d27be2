//! Clients that use much of the servers' time and memory.

use std::time::Duration;

use bytes::Bytes;
use quorate_proto::etcdserverpb::request_op::Request;
use quorate_proto::etcdserverpb::{PutRequest, RangeRequest, RequestOp, TxnRequest};
use tokio::task::JoinHandle;

use crate::client::{FaultClient, retry_until_ok, with_timeout, within};

/// Begins keys that are there for large reads.
const BULK: &str = "bulk/";
const BULK_KEYS: usize = 2_000;
const RANGES: usize = 64;
const LARGE_VALUE_BYTES: usize = 256 << 10;
/// A member that hangs does not stop the load on the others for long.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(2);

/// Writes the keys for large reads.
pub(crate) async fn write_bulk_keys(client: &FaultClient) {
    for group in (0..BULK_KEYS).collect::<Vec<_>>().chunks(100) {
        let put = |number: &usize| {
            let key = format!("{BULK}{number:06}").into();
            let value = Bytes::from(vec![b'b'; 512]);
            let put = Request::RequestPut(PutRequest { key, value, ..Default::default() });
            RequestOp { request: Some(put) }
        };
        let success: Vec<_> = group.iter().map(put).collect();
        let write = async || {
            let request = TxnRequest { success: success.clone(), ..Default::default() };
            with_timeout(client.kv().txn(request)).await
        };
        retry_until_ok("bulk keys", write).await;
    }
}

/// Transactions of many counts, and reads of all bulk keys.
pub(crate) fn start_reads(clients: Vec<FaultClient>) -> JoinHandle<()> {
    let range = |count_only| RangeRequest {
        key: BULK.into(),
        range_end: "bulk0".into(),
        count_only,
        ..Default::default()
    };
    let count = RequestOp { request: Some(Request::RequestRange(range(true))) };
    tokio::spawn(async move {
        for turn in 0.. {
            let mut kv = clients[turn % clients.len()].kv();
            let success = vec![count.clone(); RANGES];
            let counts = TxnRequest { success, ..Default::default() };
            let _ = within(TIMEOUT, kv.txn(counts)).await;
            let _ = within(TIMEOUT, kv.range(range(false))).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
}

/// Large values of a few keys.
pub(crate) fn start_writes(clients: Vec<FaultClient>) -> JoinHandle<()> {
    let value = Bytes::from(vec![b'w'; LARGE_VALUE_BYTES]);
    tokio::spawn(async move {
        for turn in 0.. {
            let key = format!("large/{}", turn % 4).into();
            let request = PutRequest { key, value: value.clone(), ..Default::default() };
            let _ = within(TIMEOUT, clients[turn % clients.len()].kv().put(request)).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}
