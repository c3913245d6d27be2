//! Keys: all options, transactions, refusals.

use etcd_client::{
    Client, CompactionOptions, Compare, CompareOp, DeleteOptions, GetOptions, PutOptions,
    SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse,
};
use tonic::Code;

use crate::{assert_refused, with_cluster};

#[test]
fn puts_and_gets_work_with_every_option() {
    with_cluster("keys", |mut client, _| async move {
        put_with_options(&mut client).await;
        get_ranges(&mut client).await;
        get_filtered(&mut client).await;
        invalid_requests(&mut client).await;
    });
}

async fn put_with_options(client: &mut Client) {
    for (key, value) in [("k1", "c"), ("k2", "b"), ("k3", "a"), ("k1", "d"), ("other", "x")] {
        client.put(key, value, None).await.unwrap();
    }
    let prev = client.put("k2", "e", Some(PutOptions::new().with_prev_key())).await.unwrap();
    let prev = prev.prev_key().unwrap();
    assert_eq!((prev.key(), prev.value(), prev.version()), (&b"k2"[..], &b"b"[..], 1));
    let lease = client.lease_grant(1000, None).await.unwrap().id();
    client.put("k3", "f", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    client.put("k3", "", Some(PutOptions::new().with_ignore_value())).await.unwrap();
    let kept = client.get("k3", None).await.unwrap();
    // The value is kept; the lease is not, because it was not requested.
    assert_eq!((kept.kvs()[0].value(), kept.kvs()[0].lease()), (&b"f"[..], 0));
    client.put("k3", "f", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    client.put("k3", "g", Some(PutOptions::new().with_ignore_lease())).await.unwrap();
    let kept = client.get("k3", None).await.unwrap();
    assert_eq!((kept.kvs()[0].value(), kept.kvs()[0].lease()), (&b"g"[..], lease));
}

async fn keys(client: &mut Client, key: &str, options: GetOptions) -> Vec<String> {
    let reply = client.get(key, Some(options)).await.unwrap();
    reply.kvs().iter().map(|kv| kv.key_str().unwrap().to_owned()).collect()
}

async fn get_ranges(client: &mut Client) {
    let new = GetOptions::new;
    assert_eq!(keys(client, "k", new().with_prefix()).await, ["k1", "k2", "k3"]);
    assert_eq!(keys(client, "k1", new().with_range("k3")).await, ["k1", "k2"]);
    assert_eq!(keys(client, "k3", new().with_from_key()).await, ["k3", "other"]);
    assert_eq!(keys(client, "", new().with_all_keys()).await, ["k1", "k2", "k3", "other"]);
    let by_value = new().with_prefix().with_sort(SortTarget::Value, SortOrder::Descend);
    assert_eq!(keys(client, "k", by_value).await, ["k3", "k2", "k1"]);
    let by_version = new().with_prefix().with_sort(SortTarget::Version, SortOrder::Ascend);
    assert_eq!(keys(client, "k", by_version).await, ["k1", "k2", "k3"]);
    let by_mod_revision = new().with_prefix().with_sort(SortTarget::Mod, SortOrder::Ascend);
    assert_eq!(keys(client, "k", by_mod_revision).await, ["k1", "k2", "k3"]);
    let by_create_revision = new().with_prefix().with_sort(SortTarget::Create, SortOrder::Descend);
    assert_eq!(keys(client, "k", by_create_revision).await, ["k3", "k2", "k1"]);
    let first = client.get("k", Some(new().with_prefix().with_limit(2))).await.unwrap();
    assert_eq!((first.kvs().len(), first.more(), first.count()), (2, true, 3));
    let old = client.get("k1", Some(new().with_revision(2))).await.unwrap();
    assert_eq!(old.kvs()[0].value(), b"c");
    let local = client.get("k1", Some(new().with_serializable())).await.unwrap();
    assert!(local.header().unwrap().revision() > 0);
}

async fn get_filtered(client: &mut Client) {
    let new = GetOptions::new;
    let keys_only = client.get("k1", Some(new().with_keys_only())).await.unwrap();
    assert_eq!((keys_only.kvs()[0].key(), keys_only.kvs()[0].value()), (&b"k1"[..], &b""[..]));
    let count = client.get("", Some(new().with_all_keys().with_count_only())).await.unwrap();
    assert_eq!((count.count(), count.kvs().len()), (4, 0));
    let changed = client.get("k1", None).await.unwrap().kvs()[0].mod_revision();
    let late = new().with_prefix().with_min_mod_revision(changed + 1);
    assert_eq!(keys(client, "k", late).await, ["k2", "k3"]);
    let early = new().with_prefix().with_max_mod_revision(changed);
    assert_eq!(keys(client, "k", early).await, ["k1"]);
    assert_eq!(keys(client, "k", new().with_prefix().with_min_create_revision(4)).await, ["k3"]);
    assert_eq!(keys(client, "k", new().with_prefix().with_max_create_revision(2)).await, ["k1"]);
    let options = DeleteOptions::new().with_prefix().with_prev_key();
    let deleted = client.delete("k", Some(options)).await.unwrap();
    assert_eq!((deleted.deleted(), deleted.prev_kvs().len()), (3, 3));
    assert_eq!(client.delete("k", None).await.unwrap().deleted(), 0);
}

async fn invalid_requests(client: &mut Client) {
    let revision = client.put("k", "1", None).await.unwrap().header().unwrap().revision();
    let physical = CompactionOptions::new().with_physical();
    client.compact(revision, Some(physical)).await.unwrap();
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    let future = "etcdserver: mvcc: required revision is a future revision";
    assert_refused(client.compact(revision, None).await, Code::OutOfRange, compacted);
    assert_refused(client.compact(revision + 9, None).await, Code::OutOfRange, future);
    let old = GetOptions::new().with_revision(revision - 1);
    assert_refused(client.get("k", Some(old)).await, Code::OutOfRange, compacted);
    let late = GetOptions::new().with_revision(revision + 1);
    assert_refused(client.get("k", Some(late)).await, Code::OutOfRange, future);
    let no_key = "etcdserver: key is not provided";
    assert_refused(client.put("", "1", None).await, Code::InvalidArgument, no_key);
    let keep = PutOptions::new().with_ignore_value();
    let given = "etcdserver: value is provided";
    assert_refused(client.put("k", "1", Some(keep)).await, Code::InvalidArgument, given);
    let leased = PutOptions::new().with_lease(77);
    let no_lease = "etcdserver: requested lease not found";
    assert_refused(client.put("k", "1", Some(leased)).await, Code::NotFound, no_lease);
    // Above the limit of a request, below the limit of a gRPC message.
    let large = vec![0; 7 << 18];
    let too_large = "etcdserver: request is too large";
    assert_refused(client.put("k", large, None).await, Code::InvalidArgument, too_large);
    let after = client.get("k", None).await.unwrap();
    assert_eq!((after.kvs()[0].value(), after.kvs()[0].mod_revision()), (&b"1"[..], revision));
}

#[test]
fn transactions_compare_nest_and_are_limited() {
    with_cluster("txn", |mut client, _| async move {
        compare_everything(&mut client).await;
        nested_transactions(&mut client).await;
        let many: Vec<TxnOp> = (0..129).map(|n| TxnOp::put(format!("n{n}"), "", None)).collect();
        let text = "etcdserver: too many operations in txn request";
        let refused = client.txn(Txn::new().and_then(many)).await;
        assert_refused(refused, Code::InvalidArgument, text);
        let twice = [TxnOp::put("a", "1", None), TxnOp::put("a", "2", None)];
        let text = "etcdserver: duplicate key given in txn request";
        let refused = client.txn(Txn::new().and_then(twice)).await;
        assert_refused(refused, Code::InvalidArgument, text);
    });
}

async fn compare_everything(client: &mut Client) {
    use CompareOp::{Equal, Greater, Less, NotEqual};
    let lease = client.lease_grant(1000, None).await.unwrap().id();
    client.put("a", "1", Some(PutOptions::new().with_lease(lease))).await.unwrap();
    client.put("ab", "1", None).await.unwrap();
    let compares = vec![
        Compare::value("a", Equal, "1"),
        Compare::value("a", NotEqual, "2"),
        Compare::version("a", Equal, 1),
        Compare::create_revision("a", Greater, 1),
        Compare::mod_revision("a", Less, 3),
        Compare::lease("a", Equal, lease),
        Compare::create_revision("nothing", Equal, 0),
        Compare::value("a", Equal, "1").with_prefix(),
    ];
    let done = Txn::new().when(compares.clone()).and_then([TxnOp::get("a", None)]);
    assert!(client.txn(done).await.unwrap().succeeded());
    // Each comparison is evaluated.
    let failing = [
        Compare::value("a", Equal, "2"),
        Compare::version("a", Equal, 2),
        Compare::create_revision("a", Equal, 1),
        Compare::mod_revision("a", Greater, 2),
        Compare::lease("a", NotEqual, lease),
        Compare::create_revision("a", Equal, 0),
        Compare::value("a", Greater, "1").with_prefix(),
    ];
    for compare in failing {
        let all = [compares.clone(), vec![compare]].concat();
        let txn = Txn::new().when(all).and_then([TxnOp::put("a", "wrong", None)]);
        let other = txn.or_else([TxnOp::get("a", None)]);
        let reply = client.txn(other).await.unwrap();
        assert!(!reply.succeeded());
        let [TxnOpResponse::Get(got)] = &reply.op_responses()[..] else { panic!("no get") };
        assert_eq!(got.kvs()[0].value(), b"1");
    }
}

async fn nested_transactions(client: &mut Client) {
    let inner = Txn::new()
        .when([Compare::value("a", CompareOp::Equal, "1")])
        .and_then([TxnOp::put("inner", "1", None), TxnOp::delete("ab", None)]);
    let txn = Txn::new().and_then([TxnOp::put("outer", "1", None), TxnOp::txn(inner)]);
    let reply = client.txn(txn).await.unwrap();
    let [TxnOpResponse::Put(_), TxnOpResponse::Txn(inner)] = &reply.op_responses()[..] else {
        panic!("unexpected replies")
    };
    let [TxnOpResponse::Put(_), TxnOpResponse::Delete(deleted)] = &inner.op_responses()[..] else {
        panic!("unexpected replies of the nested transaction")
    };
    assert_eq!(deleted.deleted(), 1);
    // All changes have one revision.
    let revision = reply.header().unwrap().revision();
    for key in ["inner", "outer"] {
        let got = client.get(key, None).await.unwrap();
        assert_eq!(got.kvs()[0].mod_revision(), revision, "{key}");
    }
}
