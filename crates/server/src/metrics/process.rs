//! Metrics of the process, from `/proc`. What cannot be read is left out.

use std::fs::{read_dir, read_to_string};

use super::MetricsPage;

pub(super) fn write(page: &mut MetricsPage) {
    if let Some(bytes) = resident_bytes() {
        page.gauge("process_resident_memory_bytes", "Resident memory size in bytes.", bytes);
    }
    if let Some(bytes) = virtual_bytes() {
        page.gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.", bytes);
    }
    if let Some(seconds) = start_seconds() {
        let help = "Start time of the process since unix epoch in seconds.";
        page.gauge("process_start_time_seconds", help, seconds);
    }
    if let Some(seconds) = cpu_seconds() {
        page.counter(
            "process_cpu_seconds_total",
            "Total user and system CPU time spent in seconds.",
            seconds,
        );
    }
    if let Ok(open) = read_dir("/proc/self/fd") {
        let open = open.count();
        page.gauge("process_open_fds", "Number of open file descriptors.", open);
        page.gauge("os_fd_used", "Number of open file descriptors.", open);
    }
    if let Some(limit) = open_files_max() {
        page.gauge("process_max_fds", "Maximum number of open file descriptors.", limit);
        page.gauge("os_fd_limit", "Maximum number of open file descriptors.", limit);
    }
}

fn virtual_bytes() -> Option<u64> {
    let statm = read_to_string("/proc/self/statm").ok()?;
    statm.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(PAGE_BYTES)
}

fn start_seconds() -> Option<f64> {
    let stat = read_to_string("/proc/self/stat").ok()?;
    let started = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse::<u64>().ok()?;
    let system = read_to_string("/proc/stat").ok()?;
    let booted = system.lines().find_map(|line| line.strip_prefix("btime "))?;
    Some(booted.trim().parse::<u64>().ok()? as f64 + started as f64 / TICKS_PER_SECOND)
}

pub(crate) fn resident_bytes() -> Option<u64> {
    let statm = read_to_string("/proc/self/statm").ok()?;
    statm.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(PAGE_BYTES)
}

fn cpu_seconds() -> Option<f64> {
    let stat = read_to_string("/proc/self/stat").ok()?;
    // The name of the process may contain anything, so the fields are read after it.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) as f64 / TICKS_PER_SECOND)
}

pub(crate) fn open_files_max() -> Option<u64> {
    let limits = read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

const PAGE_BYTES: u64 = 4096;
const TICKS_PER_SECOND: f64 = 100.0;
