//! Applies an entry of etcd's log as etcd would.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use prost::Message;
use quorate_etcd_files::{ProtobufFields, ProtobufValue, WalEntry};
use quorate_kv::{
    Alarm, AlarmKind, AuthCommand, Command, CommandIssuer, Compact, KeyRange, Kv, LEASE_TTL_MAX,
    LeaseCheckpoint, LeaseGrant, PasswordHash, Table, Txn, TxnOperation,
};
use quorate_proto::etcdserverpb as pb;
use quorate_proto::etcdserverpb::alarm_request::AlarmAction;
use sha2::{Digest, Sha256};

use super::EtcdImportError;
use crate::service::auth::permission_of;
use crate::service::kv::convert;

/// Applies an entry to the store. Requests that etcd refuses change nothing here either.
///
/// With `drops_ranges`, reads at the top level of a transaction are not checked, as in etcd
/// before 3.7 on members that no client waits for.
pub(crate) fn apply_entry<T: Table>(
    kv: &mut Kv<T>,
    entry: &WalEntry,
    drops_ranges: bool,
) -> Result<(), EtcdImportError> {
    // The new cluster has other members. The first entry of a leader is empty.
    if entry.kind != NORMAL || entry.data.is_empty() {
        return Ok(());
    }
    let failed = |problem| EtcdImportError::Entry { index: entry.index, problem };
    let Some(command) = command(entry, drops_ranges).map_err(failed)? else { return Ok(()) };
    // A refusal is part of the result, as it was in etcd.
    let _ = kv.apply_of_etcd(entry.index, &command)?;
    Ok(())
}

/// The command of an entry; `None` if it changes no data.
fn command(entry: &WalEntry, drops_ranges: bool) -> Result<Option<Command>, String> {
    let mut request = None;
    let mut issuer = None;
    if is_v2_request(&entry.data) {
        return Ok(None);
    }
    for field in ProtobufFields::new(&entry.data) {
        let field = field.ok_or("the request cannot be decoded")?;
        match (field.number, field.value) {
            (REQUEST_ID, _) => {}
            (HEADER, ProtobufValue::Bytes(header)) => issuer = issuer_of(header)?,
            (number, ProtobufValue::Bytes(message)) if request.is_none() => {
                request = Some((number, message));
            }
            (number, _) => return Err(format!("field {number} of the request is unexpected")),
        }
    }
    let Some((number, message)) = request else {
        return Err("the request is empty".to_owned());
    };
    let command = match number {
        4..=11 => data_command(number, message, drops_ranges)?,
        1000..=1299 => auth_command(number, message, entry)?.map(Command::Auth),
        // Old requests, reads, and what concerns only the members of the old cluster.
        2 | 3 | 1300..=1302 | 9900 => None,
        _ => return Err(format!("requests of kind {number} are unknown")),
    };
    Ok(command.map(|command| match issuer {
        Some(issuer) => command.issued_by(issuer),
        None => command,
    }))
}

fn data_command(
    number: u64,
    message: &[u8],
    drops_ranges: bool,
) -> Result<Option<Command>, String> {
    let unreadable = |error: quorate_kv::KvError| error.to_string();
    Ok(Some(match number {
        4 => Command::Put(convert::put(decode(message)?)),
        5 => Command::DeleteRange(convert::delete_range(decode(message)?)),
        6 => {
            let mut txn = convert::txn(decode(message)?).map_err(unreadable)?;
            if drops_ranges {
                drop_ranges(&mut txn);
            }
            Command::Txn(txn)
        }
        7 => {
            let pb::CompactionRequest { revision, .. } = decode(message)?;
            Command::Compact(Compact { revision })
        }
        8 => {
            let pb::LeaseGrantRequest { id, ttl } = decode(message)?;
            if ttl > LEASE_TTL_MAX {
                return Ok(None);
            }
            Command::LeaseGrant(LeaseGrant { id, ttl: ttl.max(LEASE_TTL_MIN) })
        }
        9 => {
            let pb::LeaseRevokeRequest { id } = decode(message)?;
            Command::LeaseRevoke(id)
        }
        10 => return alarm_command(&decode(message)?),
        _ => Command::LeaseCheckpoint(checkpoints(message)?),
    }))
}

fn drop_ranges(txn: &mut Txn) {
    let is_range = |operation: &TxnOperation| matches!(operation, TxnOperation::Range(_));
    txn.success.retain(|operation| !is_range(operation));
    txn.failure.retain(|operation| !is_range(operation));
}

fn alarm_command(request: &pb::AlarmRequest) -> Result<Option<Command>, String> {
    let kind = match u8::try_from(request.alarm) {
        Ok(0) => return Ok(None),
        Ok(number) => AlarmKind::from_number(number),
        Err(_) => None,
    };
    let kind = kind.ok_or_else(|| format!("alarm {} is unknown", request.alarm))?;
    let alarm = Alarm { kind, member: request.member_id };
    Ok(match request.action() {
        AlarmAction::Get => None,
        AlarmAction::Activate => Some(Command::AlarmActivate(alarm)),
        AlarmAction::Deactivate => Some(Command::AlarmDisarm(alarm)),
    })
}

fn checkpoints(message: &[u8]) -> Result<Vec<LeaseCheckpoint>, String> {
    let unreadable = || "the checkpoints cannot be decoded".to_owned();
    let checkpoint = |message: &[u8]| {
        let mut checkpoint = LeaseCheckpoint::default();
        for field in ProtobufFields::new(message) {
            let field = field.ok_or_else(unreadable)?;
            match field.number {
                1 => checkpoint.id = field.value.number() as i64,
                2 => checkpoint.remaining = field.value.number() as i64,
                _ => {}
            }
        }
        Ok(checkpoint)
    };
    ProtobufFields::new(message)
        .map(|field| checkpoint(field.ok_or_else(unreadable)?.value.bytes()))
        .collect()
}

fn auth_command(
    number: u64,
    message: &[u8],
    entry: &WalEntry,
) -> Result<Option<AuthCommand>, String> {
    Ok(Some(match number {
        1000 => AuthCommand::Enable,
        1011 => AuthCommand::Disable,
        1100 => {
            let request: pb::AuthUserAddRequest = decode(message)?;
            let no_password = request.options.is_some_and(|options| options.no_password);
            let password = match no_password {
                true => None,
                false => Some(password(&request.password, &request.hashed_password, entry)?),
            };
            AuthCommand::UserAdd { name: request.name, password }
        }
        1101 => AuthCommand::UserDelete(decode::<pb::AuthUserDeleteRequest>(message)?.name),
        1103 => {
            let request: pb::AuthUserChangePasswordRequest = decode(message)?;
            let password = password(&request.password, &request.hashed_password, entry)?;
            AuthCommand::UserChangePassword { name: request.name, password }
        }
        1104 => {
            let pb::AuthUserGrantRoleRequest { user, role } = decode(message)?;
            AuthCommand::UserGrantRole { user, role }
        }
        1105 => {
            let pb::AuthUserRevokeRoleRequest { name, role } = decode(message)?;
            AuthCommand::UserRevokeRole { user: name, role }
        }
        1200 => AuthCommand::RoleAdd(decode::<pb::AuthRoleAddRequest>(message)?.name),
        1201 => AuthCommand::RoleDelete(decode::<pb::AuthRoleDeleteRequest>(message)?.role),
        1203 => {
            let request: pb::AuthRoleGrantPermissionRequest = decode(message)?;
            // etcd refuses a request without a permission.
            let Some(permission) = request.perm else { return Ok(None) };
            let permission = permission_of(permission).map_err(|error| error.to_string())?;
            AuthCommand::RoleGrantPermission { role: request.name, permission }
        }
        1204 => {
            let pb::AuthRoleRevokePermissionRequest { role, key, range_end } = decode(message)?;
            AuthCommand::RoleRevokePermission { role, keys: KeyRange { key, range_end } }
        }
        // Reads, and tokens, which are not part of the data.
        1012 | 1013 | 1102 | 1106 | 1107 | 1202 => return Ok(None),
        _ => return Err(format!("requests of kind {number} are unknown")),
    }))
}

/// The hash in a request. etcd 3.4 logs the password itself. Then the salt is made from the
/// entry, so that members that are restored from the same files have the same hash.
fn password(plain: &str, hashed: &str, entry: &WalEntry) -> Result<PasswordHash, String> {
    if !hashed.is_empty() {
        let hash = BASE64_STANDARD.decode(hashed);
        let hash = hash.map_err(|_| "the hash of a password cannot be decoded")?;
        return Ok(PasswordHash::new(hash));
    }
    let digest = Sha256::new().chain_update(entry.index.to_be_bytes()).chain_update(&entry.data);
    let digest = digest.finalize();
    let salt = digest.first_chunk::<16>().copied().unwrap_or_default();
    let hash = bcrypt::hash_with_salt(plain, BCRYPT_COST, salt);
    let hash = hash.map_err(|_| "a password cannot be hashed")?;
    Ok(PasswordHash::new(hash.to_string().into_bytes()))
}

/// Requests of etcd's old API: the whole entry is one. etcd logs names of members and the
/// cluster version in this way, which a new cluster does not need.
fn is_v2_request(data: &[u8]) -> bool {
    let mut fields = ProtobufFields::new(data).flatten();
    let method = fields.find(|field| field.number == 2).map(|field| field.value.bytes());
    let mut fields = ProtobufFields::new(data).flatten();
    let path = fields.find(|field| field.number == 3).map(|field| field.value.bytes());
    let is_method = method.is_some_and(|method| V2_METHODS.contains(&method));
    is_method && path.is_some_and(|path| path.is_empty() || path.starts_with(b"/"))
}

fn issuer_of(header: &[u8]) -> Result<Option<CommandIssuer>, String> {
    let (mut name, mut revision) = (String::new(), 0);
    for field in ProtobufFields::new(header) {
        let field = field.ok_or("the header of the request cannot be decoded")?;
        match field.number {
            2 => name = String::from_utf8_lossy(field.value.bytes()).into_owned(),
            3 => revision = field.value.number(),
            _ => {}
        }
    }
    Ok((!name.is_empty()).then_some(CommandIssuer::User { name, revision }))
}

fn decode<M: Message + Default>(message: &[u8]) -> Result<M, String> {
    M::decode(Bytes::copy_from_slice(message)).map_err(|error| error.to_string())
}

/// The kind of entries that are requests.
const NORMAL: u64 = 0;
const REQUEST_ID: u64 = 1;
const HEADER: u64 = 100;
const V2_METHODS: [&[u8]; 6] = [b"PUT", b"POST", b"GET", b"QGET", b"DELETE", b"SYNC"];
/// etcd raises shorter leases when they are granted: one and a half election timeouts, which is
/// this with its default flags.
const LEASE_TTL_MIN: i64 = 2;
/// etcd's default.
const BCRYPT_COST: u32 = 10;

#[cfg(test)]
mod tests;
