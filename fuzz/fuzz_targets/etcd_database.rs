//! A damaged database of etcd is refused, in memory that its size bounds.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quorate_etcd_files::fuzzing::read_database(bytes);
    quorate_server::fuzzing::import_etcd_database(bytes);
});
