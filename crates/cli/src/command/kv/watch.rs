//! `quorate watch`: prints events. If its member is lost, it continues at another endpoint with
//! the revision after the last one that it printed.

use std::time::{Duration, Instant};

use quorate_proto::etcdserverpb as etcd;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::mvccpb;
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

use super::simple::SimpleText;
use super::wire_json;
use crate::arguments::WriteOut;
use crate::client::{Connection, connect, is_unreachable};
use crate::error::CliError;
use crate::kv_arguments::WatchArguments;
use crate::print;

/// The watch ends with an error when no member has answered for this long.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const RECONNECT_INTERVAL: Duration = Duration::from_millis(200);

pub(crate) async fn run(arguments: WatchArguments) -> Result<(), CliError> {
    let mut watch = Watch { next_revision: arguments.rev, arguments, disconnected_since: None };
    let mut connection = connect(&watch.arguments.client).await?;
    loop {
        match watch.follow(&connection).await {
            Ok(()) => {}
            Err(WatchEnd::Final(error)) => return Err(error),
            Err(WatchEnd::Status(status)) => {
                let since = *watch.disconnected_since.get_or_insert_with(Instant::now);
                let lost = is_unreachable(&status) || status.code() == Code::Unknown;
                if !lost || since.elapsed() > RECONNECT_TIMEOUT {
                    let endpoint = &connection.endpoint;
                    return Err(CliError::from_status("cannot watch", endpoint, &status));
                }
            }
        }
        tokio::time::sleep(RECONNECT_INTERVAL).await;
        // If none answers, the old connection reports that, and the time limit ends the watch.
        if let Ok(other) = connect(&watch.arguments.client).await {
            connection = other;
        }
    }
}

struct Watch {
    arguments: WatchArguments,
    /// 0 until the server has said at which revision the watch began.
    next_revision: i64,
    disconnected_since: Option<Instant>,
}

enum WatchEnd {
    /// Another member may continue.
    Status(Status),
    Final(CliError),
}

impl From<Status> for WatchEnd {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

impl Watch {
    /// Prints the events of one connection until it ends.
    async fn follow(&mut self, connection: &Connection) -> Result<(), WatchEnd> {
        // The sender stays open: the server ends a watch whose requests end.
        let (sender, receiver) = mpsc::channel(1);
        let create = etcd::WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(self.create_request())),
        };
        let _ = sender.send(create).await;
        let mut request = tonic::Request::new(ReceiverStream::new(receiver));
        // A member that loses its leader ends the watch, so that another one can continue it.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let mut replies = connection.watch().watch(request).await?.into_inner();
        while let Some(reply) = replies.message().await? {
            self.on_reply(&reply).await?;
        }
        Err(WatchEnd::Status(Status::unavailable("the server ended the watch")))
    }

    fn create_request(&self) -> etcd::WatchCreateRequest {
        let (key, range_end) = self.arguments.keys.range();
        etcd::WatchCreateRequest {
            key: key.into(),
            range_end: range_end.into(),
            start_revision: self.next_revision,
            progress_notify: self.arguments.progress_notify,
            prev_kv: self.arguments.prev_kv,
            ..etcd::WatchCreateRequest::default()
        }
    }

    async fn on_reply(&mut self, reply: &etcd::WatchResponse) -> Result<(), WatchEnd> {
        if reply.canceled {
            return Err(canceled(reply));
        }
        self.disconnected_since = None;
        let revision = reply.header.as_ref().map_or(0, |header| header.revision);
        if reply.created {
            if self.next_revision == 0 {
                self.next_revision = revision + 1;
            }
            return Ok(());
        }
        if !reply.events.is_empty() || self.arguments.progress_notify {
            self.print(reply);
        }
        for event in &reply.events {
            self.execute(event).await.map_err(WatchEnd::Final)?;
        }
        if let Some(last) = reply.events.last().and_then(|event| event.kv.as_ref()) {
            self.next_revision = self.next_revision.max(last.mod_revision + 1);
        }
        Ok(())
    }

    fn print(&self, reply: &etcd::WatchResponse) {
        match self.arguments.client.write_out {
            WriteOut::Json => print::json(&wire_json::watch(reply)),
            WriteOut::Table if reply.events.is_empty() => {
                let revision = reply.header.as_ref().map_or(0, |header| header.revision);
                print::line(&format!("progress notify: {revision}"));
            }
            WriteOut::Table => {
                let mut text = SimpleText::new(self.arguments.output);
                reply.events.iter().for_each(|event| {
                    text.event(event);
                });
                text.print();
            }
        }
    }

    /// Runs the command of the user. Its failure does not end the watch.
    async fn execute(&self, event: &mvccpb::Event) -> Result<(), CliError> {
        let Some((program, rest)) = self.arguments.command.split_first() else { return Ok(()) };
        let pair = event.kv.clone().unwrap_or_default();
        let text = |bytes: &[u8]| format!("{:?}", String::from_utf8_lossy(bytes));
        let mut command = Command::new(program);
        command
            .args(rest)
            .env("ETCD_WATCH_REVISION", pair.mod_revision.to_string())
            .env("ETCD_WATCH_EVENT_TYPE", format!("{:?}", event.r#type().as_str_name()))
            .env("ETCD_WATCH_KEY", text(&pair.key))
            .env("ETCD_WATCH_VALUE", text(&pair.value));
        let status = command.status().await.map_err(|error| {
            CliError::with_cause(&format!("cannot run {}", program.display()), &error)
        })?;
        if !status.success() {
            let name = program.display();
            print::note(self.arguments.client.write_out, &format!("{name} failed: {status}"));
        }
        Ok(())
    }
}

/// Why the server ended the watch.
fn canceled(reply: &etcd::WatchResponse) -> WatchEnd {
    if reply.compact_revision > 0 {
        return WatchEnd::Final(CliError::failed(format!(
            "the watch begins before revision {}, and events before that are compacted; begin \
             with --rev {} or later",
            reply.compact_revision, reply.compact_revision
        )));
    }
    // A member without a leader ends its watches; another one may continue.
    if reply.cancel_reason.contains("no leader") {
        return WatchEnd::Status(Status::unavailable(reply.cancel_reason.clone()));
    }
    let reason = match reply.cancel_reason.as_str() {
        "" => "the server gave no reason",
        reason => reason,
    };
    WatchEnd::Final(CliError::failed(format!("the server canceled the watch: {reason}")))
}
