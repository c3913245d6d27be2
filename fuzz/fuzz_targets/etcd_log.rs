//! A damaged log of etcd is refused, and its entries are applied or refused.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quorate_etcd_files::fuzzing::read_log(bytes);
    quorate_server::fuzzing::apply_etcd_entry(bytes);
});
