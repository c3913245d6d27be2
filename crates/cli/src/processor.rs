//! How much processor time other processes on this machine took.

use std::fs;
use std::time::Duration;

use crate::failure::Failure;

/// Linux counts in these for every program, whatever it counts in itself.
const TICKS_PER_SECOND: u64 = 100;

/// Of all these processes together, with all their threads.
pub(crate) fn taken(pids: &[u32]) -> Result<Duration, Failure> {
    pids.iter().try_fold(Duration::ZERO, |sum, pid| Ok(sum + of_one(*pid)?))
}

fn of_one(pid: u32) -> Result<Duration, Failure> {
    let file = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&file)
        .map_err(|why| Failure::because(&format!("cannot measure process {pid}: {file}"), &why))?;
    ticks(&text)
        .map(|ticks| Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
        .ok_or_else(|| Failure::failed(format!("cannot measure process {pid}: {file} is odd")))
}

/// User and system time. Its name stands in brackets and may hold anything, brackets too.
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
    fn names_with_brackets_do_not_confuse() {
        let stat = "12 (a) b (c)) S 1 12 12 0 -1 4194304 100 0 0 0 250 75 1 2 20 0 9 0 100 1";
        assert_eq!(ticks(stat), Some(325));
        assert_eq!(ticks("12 (a) S 1 2"), None);
        assert_eq!(ticks(""), None);
    }

    #[test]
    fn this_process_can_be_measured() {
        assert!(taken(&[std::process::id()]).is_ok());
        assert!(taken(&[]).is_ok_and(|time| time.is_zero()));
        let refused = taken(&[u32::MAX]).unwrap_err().to_string();
        assert!(refused.contains("/proc/4294967295/stat"), "{refused}");
    }
}
