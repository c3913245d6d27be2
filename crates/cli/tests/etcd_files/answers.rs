//! What a server answers about all its data, as JSON that can be compared: the same as
//! `scripts/etcd-fixtures.py` records.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use quorate_proto::authpb::permission::Type as PermissionType;
use quorate_proto::etcdserverpb::auth_client::AuthClient;
use quorate_proto::etcdserverpb::kv_client::KvClient;
use quorate_proto::etcdserverpb::lease_client::LeaseClient;
use quorate_proto::etcdserverpb::maintenance_client::MaintenanceClient;
use quorate_proto::etcdserverpb::watch_client::WatchClient;
use quorate_proto::etcdserverpb::watch_request::RequestUnion;
use quorate_proto::etcdserverpb::{
    AlarmRequest, AuthRoleGetRequest, AuthRoleListRequest, AuthUserGetRequest, AuthUserListRequest,
    AuthenticateRequest, HashKvRequest, LeaseLeasesRequest, LeaseTimeToLiveRequest, PutRequest,
    RangeRequest, WatchCreateRequest, WatchRequest,
};
use quorate_proto::mvccpb::KeyValue;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// A client of any server, as one user.
#[derive(Clone)]
pub(crate) struct User {
    channel: Channel,
    token: Option<String>,
}

impl User {
    pub(crate) async fn login(url: &str, name: &str, password: &str) -> Result<Self, Status> {
        let channel = Endpoint::from_shared(url.to_owned()).unwrap().connect().await.unwrap();
        let request = AuthenticateRequest { name: name.into(), password: password.into() };
        let reply = AuthClient::new(channel.clone()).authenticate(request).await?;
        Ok(Self { channel, token: Some(reply.into_inner().token) })
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.parse().unwrap());
        }
        request
    }

    pub(crate) async fn range(&self, key: &str, end: &str, revision: i64) -> Result<Found, Status> {
        let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
        let request = RangeRequest { key, range_end, revision, ..Default::default() };
        let reply = KvClient::new(self.channel.clone()).range(self.request(request)).await?;
        let reply = reply.into_inner();
        Ok(Found { revision: reply.header.unwrap().revision, kvs: reply.kvs })
    }

    pub(crate) async fn put(&self, key: &str, value: &str) -> Result<(), Status> {
        let (key, value) = (key.to_owned().into(), value.to_owned().into());
        let request = PutRequest { key, value, ..Default::default() };
        KvClient::new(self.channel.clone()).put(self.request(request)).await.map(drop)
    }

    pub(crate) async fn disarm(&self, member: u64) {
        let request = AlarmRequest { action: 2, member_id: member, alarm: 1 };
        let mut client = MaintenanceClient::new(self.channel.clone());
        client.alarm(self.request(request)).await.unwrap();
    }

    /// Everything, from the revision `first` on.
    pub(crate) async fn answers(&self, first: i64) -> Value {
        let now = self.range("\0", "\0", 0).await.unwrap().revision;
        let (mut ranges, mut hashes) = (Map::new(), Map::new());
        for revision in first..=now {
            let found = self.range("\0", "\0", revision).await.unwrap().kvs;
            let digest = digest(found.iter().map(line));
            ranges.insert(revision.to_string(), json!({ "keys": found.len(), "digest": digest }));
            let request = self.request(HashKvRequest { revision });
            let mut client = MaintenanceClient::new(self.channel.clone());
            let hash = match client.hash_kv(request).await {
                Ok(hash) => hash.into_inner(),
                // etcd 3.4 does not hash the compacted revision.
                Err(error) if revision == first && error.code() == Code::OutOfRange => continue,
                Err(error) => panic!("hash of revision {revision}: {error}"),
            };
            let hash = json!({ "hash": hash.hash, "compact": hash.compact_revision });
            hashes.insert(revision.to_string(), hash);
        }
        let mut watch = Map::new();
        for start in [first - 1, first, first + 3] {
            watch.insert(start.to_string(), self.watch(start, now).await);
        }
        json!({
            "revision": now,
            "first": first,
            "ranges": ranges,
            "hashes": hashes,
            "watch": watch,
            "leases": self.leases().await,
            "users": self.users().await,
            "roles": self.roles().await,
            "alarms": self.alarms().await,
        })
    }

    /// The events from a revision on, or at which revision the watch was refused.
    async fn watch(&self, start: i64, last: i64) -> Value {
        let (key, range_end) = ("\0".into(), "\0".into());
        let create =
            WatchCreateRequest { key, range_end, start_revision: start, ..Default::default() };
        let request = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let requests = tokio_stream::iter([request]).chain(tokio_stream::pending());
        let mut client = WatchClient::new(self.channel.clone());
        let mut replies = client.watch(self.request(requests)).await.unwrap().into_inner();
        let mut lines = Vec::new();
        let mut reached = 0;
        while reached < last {
            let next = tokio::time::timeout(Duration::from_secs(60), replies.message()).await;
            let reply = next.unwrap().unwrap().unwrap();
            if reply.canceled {
                return json!({ "compacted": reply.compact_revision });
            }
            for event in reply.events {
                let kind = if event.r#type == 1 { "DELETE" } else { "PUT" };
                let kv = event.kv.unwrap();
                reached = kv.mod_revision;
                lines.push(format!("{kind}|{}", line(&kv)));
            }
        }
        json!({ "events": lines.len(), "digest": digest(lines.into_iter()) })
    }

    async fn leases(&self) -> Value {
        let mut client = LeaseClient::new(self.channel.clone());
        let all = client.lease_leases(self.request(LeaseLeasesRequest {})).await.unwrap();
        let mut leases = Map::new();
        for lease in all.into_inner().leases {
            let request = self.request(LeaseTimeToLiveRequest { id: lease.id, keys: true });
            let found = client.lease_time_to_live(request).await.unwrap().into_inner();
            assert!(found.ttl > 0 && found.ttl <= found.granted_ttl, "{found:?}");
            let keys: Vec<_> = found.keys.iter().map(|key| BASE64_STANDARD.encode(key)).collect();
            let lease_text = json!({ "ttl": found.granted_ttl.to_string(), "keys": keys });
            leases.insert(lease.id.to_string(), lease_text);
        }
        Value::Object(leases)
    }

    async fn users(&self) -> Value {
        let mut client = AuthClient::new(self.channel.clone());
        let all = client.user_list(self.request(AuthUserListRequest {})).await.unwrap();
        let mut users = Map::new();
        for name in all.into_inner().users {
            let request = self.request(AuthUserGetRequest { name: name.clone() });
            let roles = client.user_get(request).await.unwrap().into_inner().roles;
            users.insert(name, json!(roles));
        }
        Value::Object(users)
    }

    /// Without the role `root`, whose permissions etcd 3.4 does not show.
    async fn roles(&self) -> Value {
        let mut client = AuthClient::new(self.channel.clone());
        let all = client.role_list(self.request(AuthRoleListRequest {})).await.unwrap();
        let mut roles = Map::new();
        for role in all.into_inner().roles.into_iter().filter(|role| role != "root") {
            let request = self.request(AuthRoleGetRequest { role: role.clone() });
            let found = client.role_get(request).await.unwrap().into_inner().perm;
            let permission = |it: quorate_proto::authpb::Permission| {
                let mut fields = Map::new();
                fields.insert("key".into(), json!(BASE64_STANDARD.encode(&it.key)));
                if !it.range_end.is_empty() {
                    let end = BASE64_STANDARD.encode(&it.range_end);
                    fields.insert("range_end".into(), json!(end));
                }
                if it.perm_type() != PermissionType::Read {
                    fields.insert("permType".into(), json!(it.perm_type().as_str_name()));
                }
                Value::Object(fields)
            };
            roles.insert(role, found.into_iter().map(permission).collect());
        }
        Value::Object(roles)
    }

    async fn alarms(&self) -> Value {
        let mut client = MaintenanceClient::new(self.channel.clone());
        let found = client.alarm(self.request(AlarmRequest::default())).await.unwrap();
        let alarm = |it: quorate_proto::etcdserverpb::AlarmMember| json!({ "alarm": it.alarm().as_str_name(), "memberID": it.member_id.to_string() });
        found.into_inner().alarms.into_iter().map(alarm).collect()
    }
}

/// Keys, and the revision of the store.
pub(crate) struct Found {
    pub(crate) revision: i64,
    pub(crate) kvs: Vec<KeyValue>,
}

fn line(kv: &KeyValue) -> String {
    let (key, value) = (BASE64_STANDARD.encode(&kv.key), BASE64_STANDARD.encode(&kv.value));
    let KeyValue { create_revision, mod_revision, version, lease, .. } = kv;
    format!("{key}|{value}|{create_revision}|{mod_revision}|{version}|{lease}")
}

fn digest(lines: impl Iterator<Item = String>) -> String {
    let text = lines.collect::<Vec<_>>().join("\n");
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}
