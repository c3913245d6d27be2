//! The CPU time that other processes on this machine have used.

use std::fs;
use std::time::Duration;

use crate::error::CliError;

/// The unit of `/proc/PID/stat` on Linux (`USER_HZ`).
const TICKS_PER_SECOND: u64 = 100;

/// The total of these processes, all threads included.
pub(crate) fn cpu_time(pids: &[u32]) -> Result<Duration, CliError> {
    pids.iter().try_fold(Duration::ZERO, |sum, pid| Ok(sum + process_cpu_time(*pid)?))
}

fn process_cpu_time(pid: u32) -> Result<Duration, CliError> {
    let file = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&file).map_err(|error| {
        CliError::with_cause(&format!("cannot measure process {pid}: {file}"), &error)
    })?;
    ticks(&text).map(|ticks| Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND)).ok_or_else(
        || CliError::failed(format!("cannot measure process {pid}: {file} has an unknown format")),
    )
}

/// User and system time. The process name is in parentheses and may contain parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_names_may_contain_parentheses() {
        let stat = "12 (a) b (c)) S 1 12 12 0 -1 4194304 100 0 0 0 250 75 1 2 20 0 9 0 100 1";
        assert_eq!(ticks(stat), Some(325));
        assert_eq!(ticks("12 (a) S 1 2"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn this_process_can_be_measured() {
        assert!(cpu_time(&[std::process::id()]).is_ok());
        assert!(cpu_time(&[]).is_ok_and(|time| time.is_zero()));
        let error = cpu_time(&[u32::MAX]).unwrap_err().to_string();
        assert!(error.contains("/proc/4294967295/stat"), "{error}");
    }
}
