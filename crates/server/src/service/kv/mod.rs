//! etcd's service KV: reads, writes, transactions, compaction.

pub(crate) mod convert;
mod finish_compactions;
mod keys_only;
mod reads;
mod reply_size;

pub(crate) use convert::key_value;
pub(crate) use finish_compactions::finish_compactions;
pub(crate) use reads::{ReadTurns, read, read_previous};

use std::iter::Peekable;
use std::vec::IntoIter;

use keys_only::WithoutLeases;
use prost::Message;
use quorate_kv::{Command, Compact, KvCommandReply, KvError, KvOutcome, Put, Query, check};
use quorate_proto::etcdserverpb::kv_server::Kv;
use quorate_proto::etcdserverpb::range_request::{SortOrder, SortTarget};
use quorate_proto::etcdserverpb::{
    CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
    PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
    request_op,
};
use quorate_proto::mvccpb::KeyValue;
use reads::reserve_for_write;
use tokio::task::JoinSet;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, async_trait};

use crate::access::ClientAction;
use crate::context::{Caller, ServiceContext};
use crate::response_body::{ResponseBody, STREAMED_BYTES_MIN, can_stream, streamed};
use crate::response_budget::{MemoryWait, ResponseMemory};
use crate::status::ServiceError;

pub(crate) struct KvService {
    context: ServiceContext,
}

impl KvService {
    pub(crate) fn new(context: ServiceContext) -> Self {
        Self { context }
    }

    #[cfg(feature = "counted-calls")]
    pub(crate) fn context(&self) -> &ServiceContext {
        &self.context
    }

    /// Reads a range, if the client may and the check accepts the request.
    async fn find(
        &self,
        caller: Caller,
        request: RangeRequest,
        check_request: fn(&RangeRequest) -> Result<(), ServiceError>,
    ) -> Result<KvCallReply<RangeResponse>, ServiceError> {
        let client = self.context.admit_caller(caller, &ClientAction::Range(&request)).await?;
        check_request(&request)?;
        let serializable = request.serializable;
        let range = convert::range(request).map_err(ServiceError::Kv)?;
        check::range(&range).map_err(ServiceError::Kv)?;
        if !serializable {
            self.context.catch_up().await?;
        }
        let without_leases = WithoutLeases::of_range(&range, self.context.limits.etcd_release);
        let (reply, memory) = read(&self.context, &client, Query::Range(range)).await?;
        match reply.result {
            Ok(KvOutcome::Range(mut found)) => {
                without_leases.apply_to_range(&mut found);
                let header = Some(self.context.header(reply.revision));
                let response = convert::range_response(header, found);
                Ok(KvCallReply { response, memory: Some(memory) })
            }
            other => Err(mismatch(&other)),
        }
    }

    pub(crate) async fn find_range(
        &self,
        caller: Caller,
        request: RangeRequest,
    ) -> Result<KvCallReply<RangeResponse>, ServiceError> {
        self.find(caller, request, |_| Ok(())).await
    }

    pub(crate) async fn run_put(
        &self,
        caller: Caller,
        request: PutRequest,
    ) -> Result<KvCallReply<PutResponse>, ServiceError> {
        let client = self.context.admit_caller(caller, &ClientAction::Put(&request)).await?;
        let put = convert::put(request);
        check::put(&put).map_err(ServiceError::Kv)?;
        let reads = reply_size::reads_of_put(&put);
        let memory = reserve_for_write(&self.context, &client, reads).await?;
        let KvCommandReply { revision, result } =
            self.context.run_for(&client, put_command(put)).await?;
        match result {
            Ok(KvOutcome::Put(done)) => {
                let header = Some(self.context.header(revision));
                KvCallReply::of_write(convert::put_response(header, done), memory).await
            }
            other => Err(mismatch(&other)),
        }
    }

    pub(crate) async fn run_deletion(
        &self,
        caller: Caller,
        request: DeleteRangeRequest,
    ) -> Result<KvCallReply<DeleteRangeResponse>, ServiceError> {
        let action = ClientAction::DeleteRange(&request);
        let client = self.context.admit_caller(caller, &action).await?;
        let deletion = convert::delete_range(request);
        check::delete_range(&deletion).map_err(ServiceError::Kv)?;
        let reads = reply_size::reads_of_deletion(&deletion);
        let memory = reserve_for_write(&self.context, &client, reads).await?;
        let KvCommandReply { revision, result } =
            self.context.run_for(&client, Command::DeleteRange(deletion)).await?;
        match result {
            Ok(KvOutcome::DeleteRange(done)) => {
                let header = Some(self.context.header(revision));
                KvCallReply::of_write(convert::delete_response(header, done), memory).await
            }
            other => Err(mismatch(&other)),
        }
    }

    pub(crate) async fn run_txn(
        &self,
        caller: Caller,
        request: TxnRequest,
    ) -> Result<KvCallReply<TxnResponse>, ServiceError> {
        let client = self.context.admit_caller(caller, &ClientAction::Txn(&request)).await?;
        let serializable = is_serializable(&request);
        let txn = convert::txn(request).map_err(ServiceError::Kv)?;
        check::txn(&txn, self.context.limits.txn_requests_max).map_err(ServiceError::Kv)?;
        let without_leases = WithoutLeases::of_txn(&txn, self.context.limits.etcd_release);
        let (reply, memory) = if txn.is_read_only() {
            if !serializable {
                self.context.catch_up().await?;
            }
            let (reply, memory) = read(&self.context, &client, Query::Txn(txn)).await?;
            (reply, Some(memory))
        } else {
            let reads = reply_size::reads_of_txn(&txn);
            let memory = reserve_for_write(&self.context, &client, reads).await?;
            (self.context.run_for(&client, Command::Txn(txn)).await?, memory)
        };
        let KvCommandReply { revision, result } = reply;
        match result {
            Ok(KvOutcome::Txn(mut done)) => {
                without_leases.apply_to_txn(&mut done);
                let header = Some(self.context.header(revision));
                KvCallReply::of_write(convert::txn_response(header, done), memory).await
            }
            other => Err(mismatch(&other)),
        }
    }

    /// Old revisions are deleted with later commands, a few with each. This proposes empty
    /// commands until all are deleted.
    async fn finish_compacting(&self) -> Result<(), ServiceError> {
        while self.context.store.read_when_free().await.is_compacting() {
            let mut commands = JoinSet::new();
            for _ in 0..COMMANDS_AT_ONCE {
                let context = self.context.clone();
                commands.spawn(async move { context.run(&Command::Noop).await.map(|_| ()) });
            }
            while let Some(done) = commands.join_next().await {
                done??;
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
        let is_streamed = can_stream(&request);
        let caller = Caller::of(&request);
        let found = self.find_range(caller, request.into_inner()).await?;
        match found.into_large(is_streamed) {
            Ok(KvCallReply { response, memory }) => {
                Ok(streamed(ResponseBody::range(response, memory)?))
            }
            Err(response) => Ok(Response::new(response)),
        }
    }

    type RangeStreamStream = BoxStream<RangeStreamResponse>;

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let caller = Caller::of(&request);
        let KvCallReply { response, memory } =
            self.find(caller, request.into_inner(), check_streamable).await?;
        // The memory is in use until the last message is sent.
        let messages = RangeStreamMessages::new(response).map(move |message| {
            let _in_use = &memory;
            Ok(message)
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(messages))))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let (caller, is_streamed) = (Caller::of(&request), can_stream(&request));
        self.run_put(caller, request.into_inner()).await?.into_response(is_streamed)
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let (caller, is_streamed) = (Caller::of(&request), can_stream(&request));
        self.run_deletion(caller, request.into_inner()).await?.into_response(is_streamed)
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let (caller, is_streamed) = (Caller::of(&request), can_stream(&request));
        self.run_txn(caller, request.into_inner()).await?.into_response(is_streamed)
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        let client = self.context.admit(&request, &ClientAction::Compact).await?;
        let CompactionRequest { revision, physical } = request.into_inner();
        let compact = Command::Compact(Compact { revision });
        let reply = self.context.run_for(&client, compact).await?;
        if physical {
            self.finish_compacting().await?;
        }
        let header = Some(self.context.header(reply.revision));
        Ok(Response::new(CompactionResponse { header }))
    }
}

/// The reply to a request that is done, and the memory that it takes.
pub(crate) struct KvCallReply<T, M = Option<ResponseMemory>> {
    pub(crate) response: T,
    pub(crate) memory: M,
}

impl<T: Message + Default> KvCallReply<T> {
    /// Its memory was reserved for what the store held before.
    async fn of_write(response: T, memory: Option<ResponseMemory>) -> Result<Self, ServiceError> {
        let Some(mut memory) = memory else { return Ok(Self { response, memory: None }) };
        let bytes = response.encoded_len() as u64;
        if memory.resize(bytes, MemoryWait::ForSomeTime).await.is_err() {
            return Err(ServiceError::ReplyDropped { bytes });
        }
        Ok(Self { response, memory: Some(memory) })
    }

    /// The reply with its memory, if it is so large that it counts while it is sent; otherwise the
    /// response alone.
    pub(crate) fn into_large(self, is_streamed: bool) -> Result<KvCallReply<T, ResponseMemory>, T> {
        match self.memory {
            Some(memory) if is_streamed && memory.bytes() >= STREAMED_BYTES_MIN => {
                Ok(KvCallReply { response: self.response, memory })
            }
            _ => Err(self.response),
        }
    }

    fn into_response(self, is_streamed: bool) -> Result<Response<T>, Status> {
        match self.into_large(is_streamed) {
            Ok(KvCallReply { response, memory }) => {
                Ok(streamed(ResponseBody::message(&response, memory)?))
            }
            Err(response) => Ok(Response::new(response)),
        }
    }
}

/// A transaction may read stale data if all of its reads may.
fn is_serializable(txn: &TxnRequest) -> bool {
    txn.success.iter().chain(&txn.failure).all(|request| match &request.request {
        Some(request_op::Request::RequestRange(range)) => range.serializable,
        Some(request_op::Request::RequestTxn(txn)) => is_serializable(txn),
        _ => false,
    })
}

/// In a build for tests of upgrades, keys with this prefix are put with the made-up command of the
/// next version.
#[cfg(feature = "next-version-for-tests")]
const REVERSED_PREFIX: &[u8] = b"reversed/";

fn put_command(put: Put) -> Command {
    #[cfg(feature = "next-version-for-tests")]
    if put.key.starts_with(REVERSED_PREFIX) {
        return Command::PutReversed(put);
    }
    Command::Put(put)
}

/// The error for a result that is not of the expected type.
fn mismatch(result: &Result<KvOutcome, KvError>) -> ServiceError {
    match result {
        Err(error) => ServiceError::Kv(*error),
        Ok(_) => ServiceError::UnexpectedReply,
    }
}

/// As in etcd, a stream has the keys in their own order, and all of them. A malformed range is
/// refused first.
fn check_streamable(range: &RangeRequest) -> Result<(), ServiceError> {
    let checked = convert::range(range.clone()).and_then(|range| check::range(&range));
    checked.map_err(ServiceError::Kv)?;
    let is_in_key_order = match range.sort_order() {
        SortOrder::None => true,
        SortOrder::Ascend => range.sort_target() == SortTarget::Key,
        SortOrder::Descend => false,
    };
    if !is_in_key_order {
        return Err(ServiceError::RangeStreamSorted);
    }
    let filters = [
        range.min_mod_revision,
        range.max_mod_revision,
        range.min_create_revision,
        range.max_create_revision,
    ];
    if filters.iter().any(|revision| *revision != 0) {
        return Err(ServiceError::RangeStreamFiltered);
    }
    Ok(())
}

/// A range response split into the messages of a stream, which clients concatenate. Only the
/// last one carries the header and the count.
struct RangeStreamMessages {
    kvs: Peekable<IntoIter<KeyValue>>,
    /// The fields of the last message, without its keys.
    last: Option<RangeResponse>,
}

impl RangeStreamMessages {
    fn new(mut whole: RangeResponse) -> Self {
        let kvs = std::mem::take(&mut whole.kvs).into_iter().peekable();
        Self { kvs, last: Some(whole) }
    }
}

impl Iterator for RangeStreamMessages {
    type Item = RangeStreamResponse;

    fn next(&mut self) -> Option<RangeStreamResponse> {
        self.last.as_ref()?;
        let mut kvs = Vec::new();
        let mut bytes = 0;
        while let Some(kv) = self.kvs.next_if(|kv| {
            bytes += kv.key.len() + kv.value.len() + PAIR_OVERHEAD_BYTES;
            kvs.is_empty() || bytes <= PIECE_BYTES
        }) {
            kvs.push(kv);
        }
        let range_response = if self.kvs.peek().is_some() {
            Some(RangeResponse { kvs, ..RangeResponse::default() })
        } else {
            self.last.take().map(|last| RangeResponse { kvs, ..last })
        };
        Some(RangeStreamResponse { range_response })
    }
}

/// Empty commands in progress at a time to finish a compaction.
const COMMANDS_AT_ONCE: usize = 32;
/// The size of one message of a range stream.
const PIECE_BYTES: usize = 1 << 20;
/// The size of a key-value pair beside its key and value.
const PAIR_OVERHEAD_BYTES: usize = 64;
