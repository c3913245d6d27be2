//! etcd's service KV: reads, writes, transactions, compaction.

mod compaction;
mod convert;

pub(crate) use compaction::finish_compactions;
pub(crate) use convert::key_value;

use std::iter::Peekable;
use std::vec::IntoIter;

use quorate_kv::{
    Command, Compact, IncrementalRange, Kv as Data, KvError, KvOutcome, KvReply, Query, Range,
    RangeOutcome, Table, check,
};
use quorate_proto::etcdserverpb::kv_server::Kv;
use quorate_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
    request_op,
};
use quorate_proto::mvccpb::KeyValue;
use tokio::task::{JoinSet, spawn_blocking};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, async_trait};

use crate::context::{Context, Needs};
use crate::errors::{refused, table};

pub(crate) struct KvService {
    context: Context,
}

impl KvService {
    pub(crate) fn new(context: Context) -> Self {
        Self { context }
    }

    async fn find(&self, request: Request<RangeRequest>) -> Result<(i64, RangeOutcome), Status> {
        let serializable = request.get_ref().serializable;
        let needs = if serializable { Needs::Member } else { Needs::Reader };
        self.context.admit(&request, needs)?;
        let range = convert::range(request.into_inner()).map_err(refused)?;
        check::range(&range).map_err(refused)?;
        if !serializable {
            self.context.catch_up().await?;
        }
        self.look_up(range).await
    }

    /// In pieces: whoever reads everything holds up no command for longer than a piece.
    async fn look_up(&self, range: Range) -> Result<(i64, RangeOutcome), Status> {
        let store = &self.context.store;
        let (mut reading, mut more) = {
            let kv = store.read();
            let mut reading = kv.start_range(range).map_err(refused)?;
            let more = read_some(&kv, &mut reading)?;
            (reading, more)
        };
        while more {
            tokio::task::yield_now().await;
            more = read_some(&store.read(), &mut reading)?;
        }
        let KvReply { revision, result } = finish(reading).await?;
        match result {
            Ok(KvOutcome::Range(found)) => Ok((revision, found)),
            other => Err(mismatch(&other)),
        }
    }

    /// Old revisions go with later commands, a few with each. So many commands that do
    /// nothing else let them go now.
    async fn finish_compacting(&self) -> Result<(), Status> {
        while self.context.store.read().is_compacting() {
            let mut commands = JoinSet::new();
            for _ in 0..COMMANDS_AT_ONCE {
                let context = self.context.clone();
                commands.spawn(async move { context.run(&Command::Noop).await.map(|_| ()) });
            }
            while let Some(done) = commands.join_next().await {
                done.map_err(|why| Status::internal(why.to_string()))??;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Kv for KvService {
    async fn range(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<RangeResponse>, Status> {
        let (revision, found) = self.find(request).await?;
        let header = Some(self.context.header(revision));
        Ok(Response::new(convert::range_response(header, found)))
    }

    type RangeStreamStream = BoxStream<RangeStreamResponse>;

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let (revision, found) = self.find(request).await?;
        let header = Some(self.context.header(revision));
        let whole = convert::range_response(header, found);
        Ok(Response::new(Box::pin(tokio_stream::iter(Pieces::new(whole).map(Ok)))))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let put = convert::put(request.into_inner());
        check::put(&put).map_err(refused)?;
        let KvReply { revision, result } = self.context.run(&Command::Put(put)).await?;
        match result {
            Ok(KvOutcome::Put(done)) => {
                let header = Some(self.context.header(revision));
                Ok(Response::new(convert::put_response(header, done)))
            }
            other => Err(mismatch(&other)),
        }
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let deletion = convert::delete_range(request.into_inner());
        check::delete_range(&deletion).map_err(refused)?;
        let KvReply { revision, result } =
            self.context.run(&Command::DeleteRange(deletion)).await?;
        match result {
            Ok(KvOutcome::DeleteRange(done)) => {
                let header = Some(self.context.header(revision));
                Ok(Response::new(convert::delete_response(header, done)))
            }
            other => Err(mismatch(&other)),
        }
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let serializable = is_serializable(request.get_ref());
        let txn = convert::txn(request.into_inner()).map_err(refused)?;
        check::txn(&txn, self.context.limits.txn_requests_max).map_err(refused)?;
        let KvReply { revision, result } = if txn.is_read_only() {
            if !serializable {
                self.context.catch_up().await?;
            }
            self.context.look_up(&Query::Txn(txn))?
        } else {
            self.context.run(&Command::Txn(txn)).await?
        };
        match result {
            Ok(KvOutcome::Txn(done)) => {
                let header = Some(self.context.header(revision));
                Ok(Response::new(convert::txn_response(header, done)))
            }
            other => Err(mismatch(&other)),
        }
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        self.context.admit(&request, Needs::Voter)?;
        let CompactionRequest { revision, physical } = request.into_inner();
        let reply = self.context.run(&Command::Compact(Compact { revision })).await?;
        if physical {
            self.finish_compacting().await?;
        }
        let header = Some(self.context.header(reply.revision));
        Ok(Response::new(CompactionResponse { header }))
    }
}

/// Whether there is more.
fn read_some(kv: &Data<impl Table>, reading: &mut IncrementalRange) -> Result<bool, Status> {
    let piece = kv.continue_range(reading, KEYS_AT_ONCE).map_err(|why| table(&why))?;
    piece.map_err(refused)
}

/// Sorting many takes too long for a thread that others wait for.
async fn finish(reading: IncrementalRange) -> Result<KvReply, Status> {
    if reading.len() <= KEYS_AT_ONCE {
        return Ok(reading.finish());
    }
    let finished = spawn_blocking(|| reading.finish()).await;
    finished.map_err(|why| Status::internal(why.to_string()))
}

/// A transaction of reads that may all be old may be old itself.
fn is_serializable(txn: &TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).all(|request| match &request.request {
        Some(request_op::Request::RequestRange(range)) => range.serializable,
        Some(request_op::Request::RequestTxn(txn)) => is_serializable(txn),
        _ => false,
    })
}

/// A command that is not understood, or ran before and lost its reply.
fn mismatch(result: &Result<KvOutcome, KvError>) -> Status {
    match result {
        Err(why) => refused(*why),
        Ok(_) => Status::internal("etcdserver: reply of another kind"),
    }
}

/// What was found, piece by piece; clients add them up. Only the last one says how many
/// there are.
struct Pieces {
    kvs: Peekable<IntoIter<KeyValue>>,
    /// What the last piece says besides.
    last: Option<RangeResponse>,
}

impl Pieces {
    fn new(mut whole: RangeResponse) -> Self {
        let kvs = std::mem::take(&mut whole.kvs).into_iter().peekable();
        Self { kvs, last: Some(whole) }
    }
}

impl Iterator for Pieces {
    type Item = RangeStreamResponse;

    fn next(&mut self) -> Option<RangeStreamResponse> {
        let header = self.last.as_ref()?.header;
        let mut kvs = Vec::new();
        let mut bytes = 0;
        while let Some(kv) = self.kvs.next_if(|kv| {
            bytes += kv.key.len() + kv.value.len() + PAIR_OVERHEAD_BYTES;
            kvs.is_empty() || bytes <= PIECE_BYTES
        }) {
            kvs.push(kv);
        }
        let range_response = if self.kvs.peek().is_some() {
            Some(RangeResponse { header, kvs, ..RangeResponse::default() })
        } else {
            self.last.take().map(|last| RangeResponse { kvs, ..last })
        };
        Some(RangeStreamResponse { range_response })
    }
}

/// Keys that are read before others have their turn.
const KEYS_AT_ONCE: usize = 1_000;
/// Commands without effect that are under way at once to finish a compaction.
const COMMANDS_AT_ONCE: usize = 32;
/// How much of a large range goes in one piece, and what a pair counts beside its bytes.
const PIECE_BYTES: usize = 1 << 20;
const PAIR_OVERHEAD_BYTES: usize = 64;
