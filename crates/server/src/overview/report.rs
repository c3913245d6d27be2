//! What this member reports about itself.

use std::sync::atomic::Ordering;

use quorate::Membership;
use quorate_kv::AlarmKind;
use quorate_proto::quorate::v1;
use quorate_proto::quorate::v1::member_report::{Alarm, RoundTrip};

use super::timeline::{stalled_text, unix_millis};
use crate::context::ServiceContext;
use crate::member_details::address_of;
use crate::service::membership::convert::{log, role};
use crate::status::ServiceError;

pub(super) async fn own_report(context: &ServiceContext) -> Result<v1::MemberReport, ServiceError> {
    let node = &context.node;
    let overview = &context.overview;
    let status = node.status().await.map_err(ServiceError::Request)?;
    let raft = &status.raft;
    let stalled = if raft.stalled.any() { stalled_text(raft.stalled) } else { "" };
    let syncs = overview.metrics.as_ref().map(|metrics| metrics.recent_syncs());
    let (syncs, sync_p99) = syncs.unwrap_or_default();
    let (disk_free_bytes, disk_bytes) = overview.disk();
    let kv = context.store.read_when_free().await;
    let alarms = kv.alarms();
    let alarms = alarms.iter().map(|alarm| Alarm {
        member_id: alarm.member,
        kind: match alarm.kind {
            AlarmKind::NoSpace => "NOSPACE".to_owned(),
            AlarmKind::Corrupt => "CORRUPT".to_owned(),
        },
    });
    Ok(v1::MemberReport {
        member_id: node.id().0,
        age_millis: 0,
        version: crate::VERSION.to_owned(),
        role: role(raft.role).into(),
        log: Some(log(&raft.log)),
        revision: kv.revision(),
        data_bytes: kv.bytes_total().unwrap_or_default(),
        data_bytes_in_use: kv.bytes_in_use(),
        quota_bytes: kv.quota().bytes,
        sync_p99_micros: u64::try_from(sync_p99.as_micros()).unwrap_or(u64::MAX),
        syncs,
        stalled: stalled.to_owned(),
        round_trips: round_trips(context, &raft.membership),
        alarms: alarms.collect(),
        backup_unix_millis: overview.backup_unix_millis.load(Ordering::Relaxed),
        started_unix_millis: unix_millis(overview.started),
        disk_free_bytes,
        disk_bytes,
    })
}

fn round_trips(context: &ServiceContext, membership: &Membership) -> Vec<RoundTrip> {
    let connected = context.node.connected_peers();
    let members = membership.members();
    let others = members.iter().filter(|id| *id != context.node.id());
    others
        .map(|id| {
            let address = membership.info(id).and_then(address_of);
            let metrics = context.overview.metrics.as_ref();
            let latest = address.and_then(|address| metrics?.latest_round_trip(&address));
            let micros = latest.map_or(0, |latest| latest.as_micros());
            RoundTrip {
                member_id: id.0,
                connected: connected.contains(&id),
                micros: u64::try_from(micros).unwrap_or(u64::MAX),
            }
        })
        .collect()
}
