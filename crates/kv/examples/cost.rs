//! Measures the cost of commands on both tables: `cargo run --release -p quorate-kv --example cost`.
//!
//! Prints nanoseconds of CPU time per operation (of wall time where CPU time is unavailable),
//! for the state machine alone: no log, no network. The redb table lies in a temporary
//! directory.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use bytes::Bytes;
use quorate_kv::{
    Command, Compact, DeleteRange, KeyRange, Kv, MemoryTable, Put, Query, Range, RedbTable, Table,
};
use quorate_storage::FileDisk;

const KEYS: u64 = 100_000;
const PUTS: u64 = 400_000;
const VALUE_BYTES: usize = 128;

fn main() -> Result<(), Box<dyn Error>> {
    measure("memory", Kv::open(MemoryTable::default())?)?;
    let folder = tempfile::tempdir()?;
    let table = RedbTable::open(FileDisk::open(folder.path().join("disk"))?, "kv", 256 << 20)?;
    measure("redb", Kv::open(table)?)
}

fn measure<T: Table>(name: &str, mut kv: Kv<T>) -> Result<(), Box<dyn Error>> {
    let value = Bytes::from(vec![7; VALUE_BYTES]);
    let puts: Vec<Bytes> = (0..PUTS)
        .map(|number| {
            let key = key(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS);
            let put = Put { key, value: value.clone(), ..Put::default() };
            Command::Put(put).encode()
        })
        .collect();
    let mut index = 0;
    time(name, "put, from bytes to bytes", PUTS, || {
        for put in &puts {
            index += 1;
            black_box(kv.apply_bytes(index, put)?.reply.encode());
        }
        Ok(())
    })?;
    time(name, "save", 1, || Ok(kv.save()?))?;
    time(name, "get of one key", PUTS, || {
        for number in 0..PUTS {
            let keys = KeyRange::single(key(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS));
            black_box(kv.query(&Query::Range(Range { keys, ..Range::default() }))?);
        }
        Ok(())
    })?;
    time(name, "range, per key of 100", PUTS, || {
        for number in 0..PUTS / 100 {
            let keys = KeyRange { key: key(number * 7 % KEYS), range_end: "\0".into() };
            let keys = KeyRange { range_end: key(number * 7 % KEYS + 100), ..keys };
            black_box(kv.query(&Query::Range(Range { keys, ..Range::default() }))?);
        }
        Ok(())
    })?;
    time(name, "count, per key of all", KEYS, || {
        let range = Range { keys: KeyRange::all(), count_only: true, ..Range::default() };
        black_box(kv.query(&Query::Range(range))?);
        Ok(())
    })?;
    let revision = kv.revision();
    time(name, "snapshot, per row", PUTS, || {
        black_box(kv.snapshot()?.map(|chunk| chunk.len()).sum::<usize>());
        Ok(())
    })?;
    time(name, "compaction, per row", PUTS - KEYS, || {
        index += 1;
        let _ = kv.apply(index, &Command::Compact(Compact { revision }))?;
        while kv.is_compacting() {
            index += 1;
            let _ = kv.apply(index, &Command::Noop)?;
        }
        Ok(())
    })?;
    time(name, "deletion, per key", KEYS, || {
        index += 1;
        let deletion = DeleteRange { keys: KeyRange::all(), prev_kv: false };
        let _ = kv.apply(index, &Command::DeleteRange(deletion))?;
        Ok(())
    })?;
    println!("{name:>8}  {:>9} bytes in use, {:>9} in total", kv.bytes_in_use(), kv.bytes_total()?);
    Ok(())
}

fn key(number: u64) -> Bytes {
    format!("/registry/pods/{number:08}").into()
}

fn time(
    table: &str,
    operation: &str,
    count: u64,
    run: impl FnOnce() -> Result<(), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let clock = Clock::start();
    run()?;
    println!("{table:>8}  {operation:<26} {:>10} ns", clock.nanos() / u128::from(count));
    Ok(())
}

/// CPU time of this thread if available, otherwise wall time.
struct Clock {
    start: Instant,
    cpu_nanos: Option<u128>,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this measures time")]
    fn start() -> Self {
        Self { start: Instant::now(), cpu_nanos: cpu_nanos() }
    }

    fn nanos(&self) -> u128 {
        match (self.cpu_nanos, cpu_nanos()) {
            (Some(start), Some(now)) => now - start,
            _ => self.start.elapsed().as_nanos(),
        }
    }
}

fn cpu_nanos() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_whitespace().next()?.parse().ok()
}
