//! Commands and queries as bytes: what is proposed and logged. The first byte of a command is
//! the cluster version that it needs; `docs/formats.md` describes the rest.

use bytes::{Bytes, BytesMut};

use crate::alarm::{Alarm, AlarmKind};
use crate::auth::{put_auth, put_text, take_auth, take_text};
use crate::codec::{
    ByteReader, ByteSink, ByteSource, SliceReader, put_bytes, put_flags, put_list, put_number,
    put_signed, take_byte, take_bytes, take_flags, take_list, take_number, take_signed,
};
use crate::command::{
    Command, CommandIssuer, Compact, Compare, CompareOperator, CompareTarget, DeleteRange,
    IssuedCommand, KeyRange, LeaseCheckpoint, LeaseGrant, Put, Query, Quota, REQUEST_DEPTH_MAX,
    Range, SortOrder, SortTarget, Txn, TxnOperation,
};
use crate::version::{CommandDecodeError, NewerVersion, VERSION_MAX};

/// The first byte of queries and replies. They stay within a process, so it never changes.
const FORMAT: u8 = 1;

impl Command {
    /// The command as the bytes to propose.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.encode_into(&mut out);
        out.freeze()
    }

    /// Appends the bytes of [`Command::encode`].
    pub fn encode_into(&self, out: &mut BytesMut) {
        out.reserve(self.bytes_hint());
        out.put_u8(self.version() as u8);
        put_command(out, self);
    }

    /// The command in these bytes. Keys and values share the memory of `bytes`.
    pub fn decode(bytes: &Bytes) -> Result<Self, CommandDecodeError> {
        let mut from = ByteReader::from(bytes);
        let invalid = CommandDecodeError::Invalid;
        let needs = u32::from(take_byte(&mut from).ok_or(invalid)?);
        if needs > VERSION_MAX {
            return Err(CommandDecodeError::Newer(NewerVersion { needs }));
        }
        let command = take_command(&mut from).ok_or(invalid)?;
        // A command that names a lower version than it needs would run only where it is known.
        let valid = command.version() == needs && from.rest().is_empty();
        if valid { Ok(command) } else { Err(invalid) }
    }

    /// About how many bytes [`Command::encode_into`] appends: usually not more, so that its buffer does not
    /// have to grow.
    pub fn bytes_hint(&self) -> usize {
        match self {
            Self::Put(put) => COMMAND_BYTES + put_bytes_hint(put),
            Self::DeleteRange(deletion) => COMMAND_BYTES + keys_bytes_hint(&deletion.keys),
            Self::Txn(txn) => COMMAND_BYTES + txn_bytes_hint(txn),
            Self::Issued(issued) => ISSUER_BYTES + issued.command.bytes_hint(),
            _ => OTHER_BYTES,
        }
    }
}

/// The version and the kind of a command.
const COMMAND_BYTES: usize = 2;
/// An issuer with a name of usual length.
const ISSUER_BYTES: usize = 64;
const OTHER_BYTES: usize = 64;
/// Flags, a number, and the lengths of a key and of a value or the end of a range.
const KEYS_BYTES: usize = 24;
/// The numbers of a range, most of which are usually 0, and the kind of an operation.
const RANGE_BYTES: usize = 24;

fn put_bytes_hint(put: &Put) -> usize {
    KEYS_BYTES + put.key.len() + put.value.len()
}

fn keys_bytes_hint(keys: &KeyRange) -> usize {
    KEYS_BYTES + keys.key.len() + keys.range_end.len()
}

fn txn_bytes_hint(txn: &Txn) -> usize {
    let compare = |compare: &Compare| {
        let value = match &compare.target {
            CompareTarget::Value(value) => value.len(),
            _ => 0,
        };
        keys_bytes_hint(&compare.keys) + value
    };
    let operation = |operation: &TxnOperation| match operation {
        TxnOperation::Range(range) => RANGE_BYTES + keys_bytes_hint(&range.keys),
        TxnOperation::Put(put) => put_bytes_hint(put),
        TxnOperation::DeleteRange(deletion) => keys_bytes_hint(&deletion.keys),
        TxnOperation::Txn(txn) => txn_bytes_hint(txn),
    };
    let compared: usize = txn.compare.iter().map(compare).sum();
    let operations = txn.success.iter().chain(&txn.failure);
    KEYS_BYTES + compared + operations.map(operation).sum::<usize>()
}

impl Query {
    /// The query as bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        out.put_u8(FORMAT);
        match self {
            Self::Revision => out.put_u8(0),
            Self::Range(range) => {
                out.put_u8(1);
                put_range(&mut out, range);
            }
            Self::Txn(txn) => {
                out.put_u8(2);
                put_txn(&mut out, txn);
            }
            Self::Lease(id) => {
                out.put_u8(3);
                put_signed(&mut out, *id);
            }
            Self::Leases => out.put_u8(4),
            Self::Alarms => out.put_u8(5),
            Self::HashKv(revision) => {
                out.put_u8(6);
                put_signed(&mut out, *revision);
            }
        }
        out.freeze()
    }

    /// The query in these bytes, or `None` if they are not a query.
    pub fn decode(bytes: &Bytes) -> Option<Self> {
        let mut from = ByteReader::from(bytes);
        let known = take_byte(&mut from)? == FORMAT;
        let question = match take_byte(&mut from)? {
            0 => Self::Revision,
            1 => Self::Range(take_range(&mut from)?),
            2 => Self::Txn(take_txn(&mut from, 0)?),
            3 => Self::Lease(take_signed(&mut from)?),
            4 => Self::Leases,
            5 => Self::Alarms,
            6 => Self::HashKv(take_signed(&mut from)?),
            _ => return None,
        };
        (known && from.rest().is_empty()).then_some(question)
    }
}

fn put_command(out: &mut impl ByteSink, command: &Command) {
    match command {
        Command::Noop => out.put_u8(0),
        Command::Put(put) => {
            out.put_u8(1);
            put_put(out, put);
        }
        Command::DeleteRange(deletion) => {
            out.put_u8(2);
            put_deletion(out, deletion);
        }
        Command::Txn(txn) => {
            out.put_u8(3);
            put_txn(out, txn);
        }
        Command::Compact(compact) => {
            out.put_u8(4);
            put_signed(out, compact.revision);
        }
        Command::LeaseGrant(grant) => {
            out.put_u8(5);
            put_signed(out, grant.id);
            put_signed(out, grant.ttl);
        }
        Command::LeaseRevoke(id) => {
            out.put_u8(6);
            put_signed(out, *id);
        }
        Command::LeaseCheckpoint(checkpoints) => {
            out.put_u8(7);
            put_list(out, checkpoints, |out, checkpoint| {
                put_signed(out, checkpoint.id);
                put_signed(out, checkpoint.remaining);
            });
        }
        Command::AlarmActivate(alarm) => {
            out.put_u8(8);
            put_alarm(out, alarm);
        }
        Command::AlarmDisarm(alarm) => {
            out.put_u8(9);
            put_alarm(out, alarm);
        }
        Command::SetQuota(quota) => {
            out.put_u8(10);
            put_number(out, quota.bytes);
            put_number(out, quota.member);
        }
        Command::Auth(auth) => {
            out.put_u8(11);
            put_auth(out, auth);
        }
        Command::Issued(issued) => {
            out.put_u8(12);
            put_issuer(out, &issued.issuer);
            put_command(out, &issued.command);
        }
        #[cfg(feature = "next-version-for-tests")]
        Command::PutReversed(put) => {
            out.put_u8(255);
            put_put(out, put);
        }
    }
}

fn take_command(from: &mut impl ByteSource) -> Option<Command> {
    Some(match take_byte(from)? {
        0 => Command::Noop,
        1 => Command::Put(take_put(from)?),
        2 => Command::DeleteRange(take_deletion(from)?),
        3 => Command::Txn(take_txn(from, 0)?),
        4 => Command::Compact(Compact { revision: take_signed(from)? }),
        5 => Command::LeaseGrant(LeaseGrant { id: take_signed(from)?, ttl: take_signed(from)? }),
        6 => Command::LeaseRevoke(take_signed(from)?),
        7 => Command::LeaseCheckpoint(take_list(from, |from| {
            Some(LeaseCheckpoint { id: take_signed(from)?, remaining: take_signed(from)? })
        })?),
        8 => Command::AlarmActivate(take_alarm(from)?),
        9 => Command::AlarmDisarm(take_alarm(from)?),
        10 => Command::SetQuota(Quota { bytes: take_number(from)?, member: take_number(from)? }),
        11 => Command::Auth(take_auth(from)?),
        12 => {
            let issuer = take_issuer(from)?;
            // No command has two issuers.
            let command = (from.rest().first() != Some(&12)).then(|| take_command(from))??;
            Command::Issued(Box::new(IssuedCommand { issuer, command }))
        }
        #[cfg(feature = "next-version-for-tests")]
        255 => Command::PutReversed(take_put(from)?),
        _ => return None,
    })
}

/// The key that an encoded command searches first, for most commands that search one. Nothing is checked that
/// decoding does not check again.
pub(crate) fn first_key(command: &[u8]) -> Option<&[u8]> {
    let mut from = SliceReader(command.get(1..)?);
    let mut kind = take_byte(&mut from)?;
    if kind == 12 {
        if take_byte(&mut from)? != 0 {
            from.take_slice()?;
            take_number(&mut from)?;
        }
        kind = take_byte(&mut from)?;
    }
    match kind {
        1 => {
            take_byte(&mut from)?;
            take_signed(&mut from)?;
            from.take_slice()
        }
        2 => {
            take_byte(&mut from)?;
            from.take_slice()
        }
        3 => {
            let compares = take_number(&mut from)?;
            if compares > 0 { from.take_slice() } else { None }
        }
        _ => None,
    }
}

fn put_issuer(out: &mut impl ByteSink, issuer: &CommandIssuer) {
    match issuer {
        CommandIssuer::Member => out.put_u8(0),
        CommandIssuer::User { name, revision } => {
            out.put_u8(1);
            put_text(out, name);
            put_number(out, *revision);
        }
    }
}

fn take_issuer(from: &mut impl ByteSource) -> Option<CommandIssuer> {
    Some(match take_byte(from)? {
        0 => CommandIssuer::Member,
        1 => CommandIssuer::User { name: take_text(from)?, revision: take_number(from)? },
        _ => return None,
    })
}

fn put_alarm(out: &mut impl ByteSink, alarm: &Alarm) {
    out.put_u8(alarm.kind.number());
    put_number(out, alarm.member);
}

fn take_alarm(from: &mut impl ByteSource) -> Option<Alarm> {
    let kind = AlarmKind::from_number(take_byte(from)?)?;
    Some(Alarm { kind, member: take_number(from)? })
}

fn put_keys(out: &mut impl ByteSink, keys: &KeyRange) {
    put_bytes(out, &keys.key);
    put_bytes(out, &keys.range_end);
}

fn take_keys(from: &mut impl ByteSource) -> Option<KeyRange> {
    Some(KeyRange { key: take_bytes(from)?, range_end: take_bytes(from)? })
}

fn put_put(out: &mut impl ByteSink, put: &Put) {
    put_flags(out, &[put.prev_kv, put.ignore_value, put.ignore_lease]);
    put_signed(out, put.lease);
    put_bytes(out, &put.key);
    put_bytes(out, &put.value);
}

fn take_put(from: &mut impl ByteSource) -> Option<Put> {
    let [prev_kv, ignore_value, ignore_lease] = take_flags(from)?;
    let lease = take_signed(from)?;
    let key = take_bytes(from)?;
    let value = take_bytes(from)?;
    Some(Put { key, value, lease, prev_kv, ignore_value, ignore_lease })
}

fn put_deletion(out: &mut impl ByteSink, deletion: &DeleteRange) {
    put_flags(out, &[deletion.prev_kv]);
    put_keys(out, &deletion.keys);
}

fn take_deletion(from: &mut impl ByteSource) -> Option<DeleteRange> {
    let [prev_kv] = take_flags(from)?;
    Some(DeleteRange { keys: take_keys(from)?, prev_kv })
}

fn put_range(out: &mut impl ByteSink, range: &Range) {
    put_flags(out, &[range.keys_only, range.count_only]);
    out.put_u8(range.sort_order as u8);
    out.put_u8(range.sort_target as u8);
    put_keys(out, &range.keys);
    for number in [
        range.limit,
        range.revision,
        range.min_mod_revision,
        range.max_mod_revision,
        range.min_create_revision,
        range.max_create_revision,
    ] {
        put_signed(out, number);
    }
}

fn take_range(from: &mut impl ByteSource) -> Option<Range> {
    let [keys_only, count_only] = take_flags(from)?;
    let sort_order = match take_byte(from)? {
        0 => SortOrder::None,
        1 => SortOrder::Ascend,
        2 => SortOrder::Descend,
        _ => return None,
    };
    let sort_target = match take_byte(from)? {
        0 => SortTarget::Key,
        1 => SortTarget::Version,
        2 => SortTarget::Create,
        3 => SortTarget::Mod,
        4 => SortTarget::Value,
        _ => return None,
    };
    Some(Range {
        keys: take_keys(from)?,
        limit: take_signed(from)?,
        revision: take_signed(from)?,
        sort_order,
        sort_target,
        keys_only,
        count_only,
        min_mod_revision: take_signed(from)?,
        max_mod_revision: take_signed(from)?,
        min_create_revision: take_signed(from)?,
        max_create_revision: take_signed(from)?,
    })
}

fn put_txn(out: &mut impl ByteSink, txn: &Txn) {
    put_list(out, &txn.compare, put_compare);
    put_list(out, &txn.success, put_request);
    put_list(out, &txn.failure, put_request);
}

fn take_txn(from: &mut impl ByteSource, depth: usize) -> Option<Txn> {
    if depth > REQUEST_DEPTH_MAX {
        return None;
    }
    Some(Txn {
        compare: take_list(from, take_compare)?,
        success: take_list(from, |from| take_request(from, depth))?,
        failure: take_list(from, |from| take_request(from, depth))?,
    })
}

fn put_request(out: &mut impl ByteSink, request: &TxnOperation) {
    match request {
        TxnOperation::Range(range) => {
            out.put_u8(0);
            put_range(out, range);
        }
        TxnOperation::Put(put) => {
            out.put_u8(1);
            put_put(out, put);
        }
        TxnOperation::DeleteRange(deletion) => {
            out.put_u8(2);
            put_deletion(out, deletion);
        }
        TxnOperation::Txn(txn) => {
            out.put_u8(3);
            put_txn(out, txn);
        }
    }
}

fn take_request(from: &mut impl ByteSource, depth: usize) -> Option<TxnOperation> {
    Some(match take_byte(from)? {
        0 => TxnOperation::Range(take_range(from)?),
        1 => TxnOperation::Put(take_put(from)?),
        2 => TxnOperation::DeleteRange(take_deletion(from)?),
        3 => TxnOperation::Txn(take_txn(from, depth + 1)?),
        _ => return None,
    })
}

fn put_compare(out: &mut impl ByteSink, compare: &Compare) {
    put_keys(out, &compare.keys);
    out.put_u8(match compare.operator {
        CompareOperator::Equal => 0,
        CompareOperator::Greater => 1,
        CompareOperator::Less => 2,
        CompareOperator::NotEqual => 3,
    });
    let mut number = |target: u8, number: i64| {
        out.put_u8(target);
        put_signed(out, number);
    };
    match &compare.target {
        CompareTarget::Version(version) => number(0, *version),
        CompareTarget::Create(revision) => number(1, *revision),
        CompareTarget::Mod(revision) => number(2, *revision),
        CompareTarget::Lease(lease) => number(4, *lease),
        CompareTarget::Value(value) => {
            out.put_u8(3);
            put_bytes(out, value);
        }
    }
}

fn take_compare(from: &mut impl ByteSource) -> Option<Compare> {
    let keys = take_keys(from)?;
    let operator = match take_byte(from)? {
        0 => CompareOperator::Equal,
        1 => CompareOperator::Greater,
        2 => CompareOperator::Less,
        3 => CompareOperator::NotEqual,
        _ => return None,
    };
    let target = match take_byte(from)? {
        0 => CompareTarget::Version(take_signed(from)?),
        1 => CompareTarget::Create(take_signed(from)?),
        2 => CompareTarget::Mod(take_signed(from)?),
        3 => CompareTarget::Value(take_bytes(from)?),
        4 => CompareTarget::Lease(take_signed(from)?),
        _ => return None,
    };
    Some(Compare { keys, operator, target })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_key_is_found_without_decoding() {
        let put = || Put { key: "key".into(), value: "value".into(), lease: -7, ..Put::default() };
        let keys = KeyRange::single("key");
        let compare = Compare {
            keys: keys.clone(),
            operator: CompareOperator::Equal,
            target: CompareTarget::Mod(4),
        };
        let txn = Txn { compare: vec![compare], ..Txn::default() };
        let user = CommandIssuer::User { name: "root".into(), revision: 1_000 };
        let issued = |issuer| {
            Command::Issued(Box::new(IssuedCommand { issuer, command: Command::Put(put()) }))
        };
        let with_key = [
            Command::Put(put()),
            Command::DeleteRange(DeleteRange { keys, prev_kv: true }),
            Command::Txn(txn),
            issued(CommandIssuer::Member),
            issued(user),
        ];
        for command in with_key {
            let bytes = command.encode();
            assert_eq!(first_key(&bytes), Some(&b"key"[..]), "{command:?}");
            for length in 0..bytes.len() {
                let found = first_key(&bytes[..length]);
                assert!(found.is_none_or(|key| key == b"key"), "{command:?}");
            }
        }
        for command in [Command::Noop, Command::Txn(Txn::default()), Command::LeaseRevoke(5)] {
            assert_eq!(first_key(&command.encode()), None);
        }
        assert_eq!(first_key(&[1, 1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x7f, 1]), None);
    }
}
