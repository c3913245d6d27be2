//! What the kernel counts for a process: CPU time, memory, context switches, system calls and
//! bytes written to disks.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Counters of some processes together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Usage {
    pub(super) cpu_seconds: f64,
    pub(super) switches: u64,
    pub(super) disk_bytes: u64,
    /// Of the process that has most.
    pub(super) memory_bytes: u64,
}

impl Usage {
    /// Of processes that write to this directory. Those that have ended count nothing.
    pub(super) fn of(pids: &[u32], directory: &Path) -> Self {
        let mut total = Self::default();
        let device = device_bytes(directory);
        for pid in pids {
            let proc = Path::new("/proc").join(pid.to_string());
            let read = |name: &str| std::fs::read_to_string(proc.join(name)).unwrap_or_default();
            total.cpu_seconds += cpu_seconds(&read("stat")).unwrap_or(0.0);
            if device.is_none() {
                total.disk_bytes += field(&read("io"), "write_bytes:").unwrap_or(0);
            }
            let memory = field(&read("status"), "VmRSS:").unwrap_or(0) << 10;
            total.memory_bytes = total.memory_bytes.max(memory);
            let threads = proc.join("task").read_dir().into_iter().flatten().flatten();
            for thread in threads {
                let status = std::fs::read_to_string(thread.path().join("status"));
                let status = status.unwrap_or_default();
                let kinds = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
                total.switches += kinds.iter().filter_map(|kind| field(&status, kind)).sum::<u64>();
            }
        }
        total.disk_bytes += device.unwrap_or(0);
        total
    }

    /// What was used since an earlier moment; memory is that of now.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            cpu_seconds: self.cpu_seconds - before.cpu_seconds,
            switches: self.switches.saturating_sub(before.switches),
            disk_bytes: self.disk_bytes.saturating_sub(before.disk_bytes),
            memory_bytes: self.memory_bytes,
        }
    }
}

/// What the device of a directory has written, for all processes. The counters of a process count units of the
/// page cache, which may be much larger than what was written; they serve where there is no device.
#[cfg(unix)]
fn device_bytes(directory: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;

    let device = directory.metadata().ok()?.dev();
    // As the C library splits it.
    let major = (device >> 8 & 0xfff) | (device >> 32 & !0xfff);
    let minor = (device & 0xff) | (device >> 12 & !0xff);
    let statistics = Path::new("/sys/dev/block").join(format!("{major}:{minor}")).join("stat");
    sectors_written(&std::fs::read_to_string(statistics).ok()?)
        .map(|sectors| sectors * SECTOR_BYTES)
}

#[cfg(not(unix))]
fn device_bytes(_directory: &Path) -> Option<u64> {
    None
}

/// The seventh number of a device's `stat`.
fn sectors_written(statistics: &str) -> Option<u64> {
    statistics.split_whitespace().nth(6)?.parse().ok()
}

const SECTOR_BYTES: u64 = 512;

/// User and system time, from `/proc/PID/stat`.
fn cpu_seconds(stat: &str) -> Option<f64> {
    // The name of the program is in parentheses, and may contain spaces.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

/// The first number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The unit of times in `/proc`, on every Linux of today.
const TICKS_PER_SECOND: f64 = 100.0;

/// Counts system calls with `perf`, where that is installed and allowed.
pub(super) struct SyscallCounter(Option<Child>);

impl SyscallCounter {
    pub(super) fn start(pids: &[u32], time: Duration) -> Self {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let child = Command::new("perf")
            .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p", &pids.join(",")])
            .args(["--", "sleep", &format!("{:.1}", time.as_secs_f64())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        Self(child.ok())
    }

    /// The system calls in that time.
    pub(super) fn finish(self) -> Option<u64> {
        let output = self.0?.wait_with_output().ok()?;
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| line.contains("raw_syscalls:sys_enter"))?;
        line.split(',').next()?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_are_read() {
        let stat = "12 (a b) c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 3";
        assert_eq!(cpu_seconds(stat), Some(2.0));
        let status = "VmRSS:\t  2048 kB\nvoluntary_ctxt_switches:\t7\n";
        assert_eq!(field(status, "VmRSS:"), Some(2048));
        assert_eq!(field(status, "voluntary_ctxt_switches:"), Some(7));
        assert_eq!(field(status, "VmHWM:"), None);
        let statistics = "  101 2 303 4 505 6 7007 8 0 9 10 0 0 0 0\n";
        assert_eq!(sectors_written(statistics), Some(7007));
    }

    #[test]
    fn this_process_uses_memory() {
        let used = Usage::of(&[std::process::id()], &std::env::temp_dir());
        assert!(used.memory_bytes > 0, "{used:?}");
        assert_eq!(used.since(used).switches, 0);
    }
}
