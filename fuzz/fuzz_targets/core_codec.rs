//! Bytes that decode to a value of the core encode to the same bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quorate_core::membership::LoggedChange;
use quorate_core::{Entries, Membership, Refusal, SnapshotMeta};
use quorate_storage::codec::Codec;

fn check<T: Codec>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(bytes.to_vec().into()) {
        assert_eq!(value.to_bytes(), bytes);
    }
}

fuzz_target!(|bytes: &[u8]| {
    check::<LoggedChange>(bytes);
    check::<Membership>(bytes);
    check::<SnapshotMeta>(bytes);
    check::<Entries>(bytes);
    check::<Refusal>(bytes);
});
