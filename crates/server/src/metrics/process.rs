//! What the system tells about this process; where it tells nothing, nothing is written.

use std::fs::{read_dir, read_to_string};

use super::Page;

pub(super) fn write(page: &mut Page) {
    if let Some(bytes) = resident_bytes() {
        page.gauge("process_resident_memory_bytes", "Memory in use.", bytes);
    }
    if let Some(seconds) = processor_seconds() {
        page.counter("process_cpu_seconds_total", "Time of processors.", seconds);
    }
    if let Ok(open) = read_dir("/proc/self/fd") {
        page.gauge("process_open_fds", "Open files and connections.", open.count());
    }
    if let Some(limit) = open_files_max() {
        page.gauge("process_max_fds", "How many may be open.", limit);
    }
}

fn resident_bytes() -> Option<u64> {
    let statm = read_to_string("/proc/self/statm").ok()?;
    statm.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(PAGE_BYTES)
}

fn processor_seconds() -> Option<f64> {
    let stat = read_to_string("/proc/self/stat").ok()?;
    // The name of the process may hold anything; what follows does not.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) as f64 / TICKS_PER_SECOND)
}

fn open_files_max() -> Option<u64> {
    let limits = read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

const PAGE_BYTES: u64 = 4096;
const TICKS_PER_SECOND: f64 = 100.0;
