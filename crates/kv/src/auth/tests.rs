//! Users and roles as commands: etcd's rules, checks when commands are applied, and that all of
//! it survives restarts and snapshots.

use super::*;
use crate::command::{
    Command, CommandIssuer, Compact, Compare, CompareOperator, CompareTarget, DeleteRange,
    LeaseGrant, Put, Query, Range, Txn, TxnOperation,
};
use crate::machine::Kv;
use crate::table::{AnyTable, MemoryTable};

struct Store {
    kv: Kv<MemoryTable>,
    index: u64,
}

impl Store {
    fn new() -> Self {
        Self { kv: Kv::open(MemoryTable::default()).unwrap(), index: 0 }
    }

    fn run(&mut self, command: Command) -> Result<(), KvError> {
        self.index += 1;
        let decoded = Command::decode(&command.encode()).unwrap();
        assert_eq!(decoded, command, "commands survive their encoding");
        let applied = self.kv.apply_bytes(self.index, &command.encode()).unwrap();
        applied.reply.result.map(|_| ())
    }

    fn auth(&mut self, command: AuthCommand) -> Result<(), KvError> {
        self.run(Command::Auth(command))
    }

    fn run_as(&mut self, user: &str, command: Command) -> Result<(), KvError> {
        let revision = self.kv.auth().revision();
        let issuer = CommandIssuer::User { name: user.into(), revision };
        self.run(command.issued_by(issuer))
    }

    /// Authentication is enabled. The user `alice` may read "r" to "s", write "w" to "x", and do
    /// both with "b".
    fn with_users() -> Self {
        let mut store = Self::new();
        for name in [ROOT, "alice"] {
            store.auth(user_add(name)).unwrap();
        }
        store.auth(grant_role(ROOT, ROOT)).unwrap();
        store.auth(AuthCommand::RoleAdd("some".into())).unwrap();
        store.auth(grant_role("alice", "some")).unwrap();
        for (mode, key, range_end) in [
            (PermissionMode::Read, "r", "s"),
            (PermissionMode::Write, "w", "x"),
            (PermissionMode::ReadWrite, "b", ""),
        ] {
            store.auth(grant("some", mode, key, range_end)).unwrap();
        }
        store.auth(AuthCommand::Enable).unwrap();
        store
    }
}

fn hash() -> PasswordHash {
    PasswordHash::new(&b"$2b$hash"[..])
}

fn user_add(name: &str) -> AuthCommand {
    AuthCommand::UserAdd { name: name.into(), password: Some(hash()) }
}

fn grant_role(user: &str, role: &str) -> AuthCommand {
    AuthCommand::UserGrantRole { user: user.into(), role: role.into() }
}

fn revoke_role(user: &str, role: &str) -> AuthCommand {
    AuthCommand::UserRevokeRole { user: user.into(), role: role.into() }
}

fn keys(key: &str, range_end: &str) -> KeyRange {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    KeyRange { key: bytes(key), range_end: bytes(range_end) }
}

fn grant(role: &str, mode: PermissionMode, key: &str, range_end: &str) -> AuthCommand {
    let permission = Permission { mode, keys: keys(key, range_end) };
    AuthCommand::RoleGrantPermission { role: role.into(), permission }
}

fn put(key: &str) -> Put {
    Put { key: keys(key, "").key, value: "v".into(), ..Put::default() }
}

fn deletion(key: &str, range_end: &str) -> DeleteRange {
    DeleteRange { keys: keys(key, range_end), prev_kv: false }
}

fn range(key: &str, range_end: &str) -> Range {
    Range { keys: keys(key, range_end), ..Range::default() }
}

const DENIED: Result<(), KvError> = Err(KvError::PermissionDenied);

#[test]
fn changes_follow_etcd_s_rules() {
    let mut store = Store::new();
    assert_eq!(store.kv.auth().revision(), 1);
    assert_eq!(store.auth(AuthCommand::Enable), Err(KvError::RootUserNotFound));
    assert_eq!(store.auth(user_add("")), Err(KvError::UserNameEmpty));
    store.auth(user_add(ROOT)).unwrap();
    assert_eq!(store.auth(user_add(ROOT)), Err(KvError::UserExists));
    assert_eq!(store.auth(AuthCommand::Enable), Err(KvError::RootRoleNotFound));
    // The role `root` may be granted without being added.
    store.auth(grant_role(ROOT, ROOT)).unwrap();
    assert_eq!(store.auth(grant_role("unknown", ROOT)), Err(KvError::UserNotFound));
    assert_eq!(store.auth(grant_role(ROOT, "none")), Err(KvError::RoleNotFound));
    assert_eq!(store.auth(revoke_role(ROOT, "none")), Err(KvError::RoleNotGranted));
    assert_eq!(store.auth(revoke_role("unknown", ROOT)), Err(KvError::UserNotFound));
    assert_eq!(store.auth(AuthCommand::RoleAdd(String::new())), Err(KvError::RoleNameEmpty));
    store.auth(AuthCommand::RoleAdd("some".into())).unwrap();
    assert_eq!(store.auth(AuthCommand::RoleAdd("some".into())), Err(KvError::RoleExists));
    let read = PermissionMode::Read;
    assert_eq!(store.auth(grant("none", read, "a", "")), Err(KvError::RoleNotFound));
    assert_eq!(store.auth(grant("some", read, "b", "a")), Err(KvError::InvalidAuthManagement));
    store.auth(grant("some", read, "a", "b")).unwrap();
    store.auth(grant("some", PermissionMode::Write, "a", "b")).unwrap();
    let expected = [Permission { mode: PermissionMode::Write, keys: keys("a", "b") }];
    assert_eq!(store.kv.auth().role("some").unwrap().permissions(), expected);
    let revoke = |key: &str, end: &str| AuthCommand::RoleRevokePermission {
        role: "some".into(),
        keys: keys(key, end),
    };
    assert_eq!(store.auth(revoke("a", "")), Err(KvError::PermissionNotGranted));
    store.auth(revoke("a", "b")).unwrap();
    assert_eq!(store.auth(AuthCommand::UserDelete("unknown".into())), Err(KvError::UserNotFound));
    let change =
        |name: &str| AuthCommand::UserChangePassword { name: name.into(), password: hash() };
    assert_eq!(store.auth(change("unknown")), Err(KvError::UserNotFound));
    assert_eq!(store.auth(AuthCommand::RoleDelete("none".into())), Err(KvError::RoleNotFound));

    let before = store.kv.auth().revision();
    assert_eq!(before, 1 + 6, "each change that had an effect raised the revision");
    store.auth(AuthCommand::Enable).unwrap();
    assert_eq!(store.kv.auth().revision(), before, "enabling does not");
    for command in [
        AuthCommand::UserDelete(ROOT.into()),
        AuthCommand::RoleDelete(ROOT.into()),
        revoke_role(ROOT, ROOT),
    ] {
        let done = store.run_as(ROOT, Command::Auth(command));
        assert_eq!(done, Err(KvError::InvalidAuthManagement));
    }
    store.run_as(ROOT, Command::Auth(AuthCommand::Disable)).unwrap();
    assert_eq!(store.kv.auth().revision(), before + 1);
    store.auth(AuthCommand::UserDelete(ROOT.into())).unwrap();
    assert_eq!(store.kv.revision(), 1, "the revision of keys does not change");
}

#[test]
fn a_deleted_role_is_revoked_from_its_users() {
    let mut store = Store::with_users();
    store.run_as("alice", Command::Put(put("w"))).unwrap();
    store.run_as(ROOT, Command::Auth(AuthCommand::RoleDelete("some".into()))).unwrap();
    assert_eq!(store.kv.auth().user("alice").unwrap().roles().len(), 0);
    assert_eq!(store.run_as("alice", Command::Put(put("w"))), DENIED);
}

#[test]
fn every_part_of_a_command_is_checked_when_it_is_applied() {
    let mut store = Store::with_users();
    store.run_as(ROOT, Command::LeaseGrant(LeaseGrant { id: 1, ttl: 60 })).unwrap();
    store.run_as("alice", Command::LeaseGrant(LeaseGrant { id: 2, ttl: 60 })).unwrap();
    store.run_as(ROOT, Command::Put(Put { lease: 1, ..put("secret") })).unwrap();
    let txn = |operation: TxnOperation| {
        // In the branch that is not taken, and nested.
        let inner = Txn { failure: vec![operation], ..Txn::default() };
        Command::Txn(Txn { success: vec![TxnOperation::Txn(inner)], ..Txn::default() })
    };
    let compare = |key: &str| {
        let target = CompareTarget::Version(0);
        let compare = Compare { keys: keys(key, ""), operator: CompareOperator::Equal, target };
        Command::Txn(Txn { compare: vec![compare], ..Txn::default() })
    };
    let prev = |put: Put| Put { prev_kv: true, ..put };
    let prev_deletion = |keys: DeleteRange| DeleteRange { prev_kv: true, ..keys };
    let cases: Vec<(Command, bool)> = vec![
        (Command::Put(put("w1")), true),
        (Command::Put(put("r1")), false),
        (Command::Put(prev(put("w1"))), false),
        (Command::Put(prev(put("b"))), true),
        (Command::Put(Put { lease: 1, ..put("w1") }), false),
        (Command::Put(Put { lease: 2, ..put("w1") }), true),
        (Command::DeleteRange(deletion("w", "x")), true),
        (Command::DeleteRange(deletion("w", "y")), false),
        (Command::DeleteRange(deletion("w", "\0")), false),
        (Command::DeleteRange(prev_deletion(deletion("w", ""))), false),
        (Command::DeleteRange(prev_deletion(deletion("b", ""))), true),
        (txn(TxnOperation::Range(range("r", "s"))), true),
        (txn(TxnOperation::Range(range("q", "s"))), false),
        (txn(TxnOperation::Put(put("w1"))), true),
        (txn(TxnOperation::Put(put("r1"))), false),
        (txn(TxnOperation::Put(prev(put("w1")))), false),
        (txn(TxnOperation::Put(Put { lease: 1, ..put("w1") })), false),
        (txn(TxnOperation::DeleteRange(deletion("w", "\0"))), false),
        (txn(TxnOperation::DeleteRange(prev_deletion(deletion("w", "")))), false),
        (compare("r1"), true),
        (compare("w1"), false),
        (Command::LeaseRevoke(1), false),
        (Command::LeaseGrant(LeaseGrant { id: 3, ttl: 60 }), true),
        (Command::Compact(Compact { revision: 2 }), false),
        (Command::Auth(AuthCommand::RoleAdd("mine".into())), false),
        (Command::Auth(AuthCommand::Disable), false),
    ];
    for (command, allowed) in cases {
        let expected = if allowed { Ok(()) } else { DENIED };
        let name = format!("{command:?}");
        assert_eq!(store.run_as("alice", command.clone()), expected, "{name}");
        let anonymous = store.run(command);
        assert_eq!(anonymous, Err(KvError::UserNameEmpty), "{name}");
    }
    store.run_as("alice", Command::LeaseRevoke(2)).unwrap();
    store.run(Command::LeaseRevoke(1).issued_by(CommandIssuer::Member)).unwrap();
    store.run(Command::Noop).unwrap();
    let alice = Issuer::User { name: "alice", revision: store.kv.auth().revision() };
    let read = |key, end| store.kv.check_query(alice, &Query::Range(range(key, end)));
    assert_eq!((read("r1", ""), read("r", "\0"), read("w", "")), (Ok(()), DENIED, DENIED));
}

#[test]
fn a_command_from_before_a_change_of_rights_is_refused() {
    let mut store = Store::with_users();
    let issuer = CommandIssuer::User { name: "alice".into(), revision: store.kv.auth().revision() };
    let proposed_before = Command::Put(put("w")).issued_by(issuer);
    store.run_as(ROOT, Command::Auth(revoke_role("alice", "some"))).unwrap();
    assert_eq!(store.run(proposed_before), Err(KvError::AuthRevisionOld));
    assert_eq!(store.run_as("alice", Command::Put(put("w"))), DENIED);
    store.run_as(ROOT, Command::Auth(AuthCommand::UserDelete("alice".into()))).unwrap();
    assert_eq!(store.run_as("alice", Command::Put(put("w"))), DENIED);
}

#[test]
fn tokens_become_invalid_with_the_password_the_user_and_when_authentication_is_disabled() {
    let mut store = Store::with_users();
    let issue = |store: &mut Store, back: u64| {
        store.index += 1;
        let checked_at = store.kv.auth().revision() - back;
        let request =
            TokenRequest { user: "alice".into(), digest: [7; 32], checked_at, issued_at: 1 };
        let command = Command::Auth(AuthCommand::IssueToken(request));
        let applied = store.kv.apply(store.index, &command).unwrap();
        applied.reply.result.map(|_| applied.token.unwrap())
    };
    assert_eq!(issue(&mut store, 1), Err(KvError::AuthRevisionOld));
    let is_current = |store: &Store, token: &IssuedToken| {
        store.kv.auth().token_is_current("alice", token.generation)
    };
    let root = |store: &mut Store, command| store.run_as(ROOT, Command::Auth(command)).unwrap();
    let token = issue(&mut store, 0).unwrap();
    root(&mut store, revoke_role("alice", "some"));
    assert!(is_current(&store, &token), "a token survives a change of roles");
    let name = "alice".to_owned();
    root(&mut store, AuthCommand::UserChangePassword { name, password: hash() });
    assert!(!is_current(&store, &token));
    let token = issue(&mut store, 0).unwrap();
    root(&mut store, AuthCommand::UserDelete("alice".into()));
    assert!(!is_current(&store, &token));
    assert_eq!(issue(&mut store, 0), Err(KvError::AuthFailed));
    root(&mut store, user_add("alice"));
    assert!(!is_current(&store, &token));
    let token = issue(&mut store, 0).unwrap();
    root(&mut store, AuthCommand::Disable);
    assert_eq!(issue(&mut store, 0), Err(KvError::AuthNotEnabled));
    store.auth(AuthCommand::Enable).unwrap();
    assert!(!is_current(&store, &token));
}

#[test]
fn users_and_roles_survive_restarts_and_snapshots() {
    let mut store = Store::with_users();
    store.run_as(ROOT, Command::Auth(user_add("gone"))).unwrap();
    store.run_as(ROOT, Command::Auth(user_add("last"))).unwrap();
    store.run_as(ROOT, Command::Auth(AuthCommand::UserDelete("gone".into()))).unwrap();
    let no_password = AuthCommand::UserAdd { name: "cn".into(), password: None };
    store.run_as(ROOT, Command::Auth(no_password)).unwrap();
    let mut copy = Kv::open(AnyTable::default()).unwrap();
    copy.install(&mut store.kv.snapshot().unwrap()).unwrap();
    assert_eq!(copy.auth(), store.kv.auth());
    assert_eq!(copy.hash().unwrap(), store.kv.hash().unwrap());
    store.kv.save().unwrap();
    let Store { kv, .. } = store;
    let before = kv.auth().clone();
    let reopened = Kv::open(kv.table).unwrap();
    assert_eq!(*reopened.auth(), before);
    assert_eq!(reopened.auth().users().collect::<Vec<_>>(), ["alice", "cn", "last", ROOT]);
    // A backup that is restored keeps them, and the hash of keys does not depend on them.
    copy.reset_for_new_cluster(10, true).unwrap();
    assert_eq!(*copy.auth(), before);
    let empty = Kv::open(MemoryTable::default()).unwrap();
    let hash = |reply: crate::KvCommandReply| format!("{:?}", reply.result);
    let (with, without) = (reopened.query(&Query::HashKv(0)), empty.query(&Query::HashKv(0)));
    assert_eq!(hash(with.unwrap()), hash(without.unwrap()));
}

#[test]
fn hashes_and_digests_do_not_appear_in_debug_texts() {
    let command = AuthCommand::UserAdd { name: "a".into(), password: Some(hash()) };
    assert!(!format!("{command:?}").contains("$2b$"));
    let request =
        TokenRequest { user: "a".into(), digest: [0xab; 32], checked_at: 1, issued_at: 1 };
    assert!(!format!("{request:?}").contains("171"));
}

#[test]
fn an_issuer_within_an_issuer_is_no_command() {
    let twice = Command::Noop.issued_by(CommandIssuer::Member).issued_by(CommandIssuer::Member);
    assert!(Command::decode(&twice.encode()).is_err());
}

/// A signed token keeps its revision. It must end with the password it was issued for.
#[test]
fn an_identity_from_before_the_password_is_refused_by_every_call() {
    let mut store = Store::with_users();
    let compact = || Command::Compact(Compact { revision: 1 });
    let run_at = |store: &mut Store, user: &str, revision: u64, command: Command| {
        let issuer = CommandIssuer::User { name: user.into(), revision };
        store.run(command.issued_by(issuer))
    };
    let grant = |id| Command::LeaseGrant(LeaseGrant { id, ttl: 60 });
    let old = store.kv.auth().revision();
    // Other changes do not matter for calls that touch no keys, as in etcd.
    store.run_as(ROOT, Command::Auth(AuthCommand::RoleAdd("other".into()))).unwrap();
    run_at(&mut store, "alice", old, grant(1)).unwrap();
    let add = || Command::Auth(AuthCommand::RoleAdd("another".into()));
    run_at(&mut store, ROOT, old, add()).unwrap();

    for user in [ROOT, "alice"] {
        let name = user.to_owned();
        let change = AuthCommand::UserChangePassword { name, password: hash() };
        store.run_as(ROOT, Command::Auth(change)).unwrap();
    }
    let too_old = Err(KvError::AuthRevisionOld);
    let delete = || Command::Auth(AuthCommand::RoleDelete("another".into()));
    assert_eq!(run_at(&mut store, ROOT, old, delete()), too_old);
    assert_eq!(run_at(&mut store, ROOT, old, compact()), too_old);
    assert_eq!(run_at(&mut store, "alice", old, grant(2)), too_old);
    let empty = || Command::Txn(Txn::default());
    assert_eq!(run_at(&mut store, "alice", old, empty()), too_old);
    let issuer = Issuer::User { name: "alice", revision: old };
    for query in [Query::Revision, Query::Leases, Query::Alarms] {
        assert_eq!(store.kv.check_query(issuer, &query), too_old, "{query:?}");
    }
    assert_eq!(store.kv.check_renewal(issuer, 1), too_old);

    // Another user of the same name.
    let old = store.kv.auth().revision();
    store.run_as(ROOT, Command::Auth(AuthCommand::UserDelete("alice".into()))).unwrap();
    store.run_as(ROOT, Command::Auth(user_add("alice"))).unwrap();
    assert_eq!(run_at(&mut store, "alice", old, grant(2)), too_old);

    let old = store.kv.auth().revision();
    store.run_as(ROOT, Command::Auth(AuthCommand::Disable)).unwrap();
    store.auth(AuthCommand::Enable).unwrap();
    assert_eq!(run_at(&mut store, ROOT, old, compact()), too_old);
    store.run_as(ROOT, delete()).unwrap();
}

#[test]
fn leases_are_checked_in_steps() {
    let mut store = Store::with_users();
    for id in 1..=10 {
        store.run_as("alice", Command::LeaseGrant(LeaseGrant { id, ttl: 60 })).unwrap();
    }
    let user = |store: &Store, name| Issuer::User { name, revision: store.kv.auth().revision() };
    let mut checked = Vec::new();
    let alice = user(&store, "alice");
    assert_eq!(store.kv.readable_leases(alice, &mut checked, 4), Ok(None));
    assert_eq!(checked, [1, 2, 3, 4]);
    assert_eq!(store.kv.readable_leases(alice, &mut checked, 4), Ok(None));
    assert_eq!(checked, [1, 2, 3, 4, 5, 6, 7, 8]);
    // Leases that come and go in between are checked all the same.
    for command in [
        Command::LeaseRevoke(3),
        Command::LeaseGrant(LeaseGrant { id: -5, ttl: 60 }),
        Command::LeaseGrant(LeaseGrant { id: 20, ttl: 60 }),
    ] {
        store.run_as("alice", command).unwrap();
    }
    let alice = user(&store, "alice");
    assert_eq!(store.kv.readable_leases(alice, &mut checked, 1), Ok(None));
    assert_eq!(checked, [-5, 1, 2, 4, 5, 6, 7, 8]);
    let expected = vec![-5, 1, 2, 4, 5, 6, 7, 8, 9, 10, 20];
    assert_eq!(store.kv.readable_leases(alice, &mut checked, 3), Ok(Some(expected.clone())));
    assert_eq!(
        store.kv.readable_leases(user(&store, ROOT), &mut Vec::new(), 0),
        Ok(Some(expected))
    );
    let put = Put { lease: 20, ..put("secret") };
    store.run_as(ROOT, Command::Put(put)).unwrap();
    let alice = user(&store, "alice");
    let denied = Err(KvError::PermissionDenied);
    assert_eq!(store.kv.readable_leases(alice, &mut checked, 100), denied);
}
