//! How large the reply to a write may be: what it reads, and the previous pairs that it returns.

use quorate_kv::{DeleteRange, KeyRange, Put, Range, Txn, TxnOperation};

/// A transaction that reads what the reply to a put contains, for measuring.
pub(super) fn reads_of_put(put: &Put) -> Txn {
    Txn { success: read_of_put(put).into_iter().collect(), ..Txn::default() }
}

pub(super) fn reads_of_deletion(deletion: &DeleteRange) -> Txn {
    Txn { success: read_of_deletion(deletion).into_iter().collect(), ..Txn::default() }
}

pub(super) fn reads_of_txn(txn: &Txn) -> Txn {
    let mut success = Vec::new();
    add_reads(&txn.success, &mut success);
    add_reads(&txn.failure, &mut success);
    Txn { success, ..Txn::default() }
}

/// Both branches of a transaction count: which one will run is not known yet.
fn add_reads(operations: &[TxnOperation], reads: &mut Vec<TxnOperation>) {
    for operation in operations {
        match operation {
            TxnOperation::Range(range) => reads.push(TxnOperation::Range(range.clone())),
            TxnOperation::Put(put) => reads.extend(read_of_put(put)),
            TxnOperation::DeleteRange(deletion) => reads.extend(read_of_deletion(deletion)),
            TxnOperation::Txn(txn) => {
                add_reads(&txn.success, reads);
                add_reads(&txn.failure, reads);
            }
        }
    }
}

fn read_of_put(put: &Put) -> Option<TxnOperation> {
    let keys = KeyRange { key: put.key.clone(), range_end: Default::default() };
    put.prev_kv.then(|| all_of(keys))
}

fn read_of_deletion(deletion: &DeleteRange) -> Option<TxnOperation> {
    deletion.prev_kv.then(|| all_of(deletion.keys.clone()))
}

fn all_of(keys: KeyRange) -> TxnOperation {
    TxnOperation::Range(Range { keys, ..Range::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(key: &str) -> TxnOperation {
        all_of(KeyRange { key: key.to_owned().into(), range_end: "z".into() })
    }

    #[test]
    fn replies_contain_ranges_and_previous_pairs_of_all_branches() {
        let put = |prev_kv| Put { key: "p".into(), prev_kv, ..Put::default() };
        let deletion = |prev_kv| {
            let keys = KeyRange { key: "d".into(), range_end: "e".into() };
            TxnOperation::DeleteRange(DeleteRange { keys, prev_kv })
        };
        let nested = Txn {
            success: vec![range("n"), TxnOperation::Put(put(false))],
            failure: vec![deletion(true)],
            ..Txn::default()
        };
        let all = Txn {
            success: vec![range("a"), TxnOperation::Put(put(true)), deletion(false)],
            failure: vec![TxnOperation::Txn(nested)],
            ..Txn::default()
        };
        let keys = |txn: Txn| -> Vec<bytes::Bytes> {
            let key = |operation| match operation {
                TxnOperation::Range(range) => range.keys.key,
                other => panic!("{other:?}"),
            };
            txn.success.into_iter().map(key).collect()
        };
        assert_eq!(keys(reads_of_txn(&all)), ["a", "p", "n", "d"]);
        let small =
            Txn { success: vec![TxnOperation::Put(put(false)), deletion(false)], ..Txn::default() };
        assert!(reads_of_txn(&small).success.is_empty());
        assert_eq!(keys(reads_of_put(&put(true))), ["p"]);
        assert!(reads_of_put(&put(false)).success.is_empty());
    }
}
