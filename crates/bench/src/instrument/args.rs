//! What an instrument is asked to measure.

use std::path::PathBuf;

use super::System;
use crate::args::{UsageError, value};

pub(crate) const USAGE: &str = "\
       quorate-bench server|membership|scale [--ours PATH] [--peer NAME=PATH]... [OPTION]...

server: three members of each system under load, in turn: throughput, latency, CPU, memory
membership: the longest gap in writes and the failed requests while members change or fail
scale: many keys, watchers, leases or voters
  --ours PATH       the quorate program (default: beside this one)
  --peer NAME=PATH  another server with etcd's API, such as etcd=/usr/bin/etcd
  --cases A,B       only these rows; an unknown name lists all
  --seconds N       load for each row (1 to 600, default 3)
  --runs N          how often each row is measured, the systems in turn (default 3)
  --value-bytes N   the size of values (default 256)
  --keys N          how many keys there are (default 100000)
  --watchers N      scale: how many watchers (default 1000)
  --leases N        scale: how many leases (default 10000)
  --voters N        scale: how many members (default 7)
  --data-mib N      membership: data that a new member has to receive (default 64)
  --time-limit N    stop after N seconds, and report what was measured (default 900)
  --directory PATH  where the members' files go, on the disk to be measured
  --json PATH       also write the result as JSON
  --svg PATH        also draw a chart";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InstrumentTask {
    Server,
    Membership,
    Scale,
}

impl InstrumentTask {
    pub(crate) fn of(name: &str) -> Option<Self> {
        [Self::Server, Self::Membership, Self::Scale].into_iter().find(|task| task.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Membership => "membership",
            Self::Scale => "scale",
        }
    }

    pub(super) fn legend(self) -> &'static str {
        match self {
            Self::Server => super::compare::LEGEND,
            Self::Membership => super::membership::LEGEND,
            Self::Scale => super::scale::LEGEND,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstrumentArgs {
    pub(crate) task: InstrumentTask,
    pub(crate) ours: Option<PathBuf>,
    pub(crate) peers: Vec<System>,
    pub(crate) cases: Vec<String>,
    pub(crate) seconds: u64,
    pub(crate) runs: usize,
    pub(crate) value_bytes: u32,
    pub(crate) keys: u64,
    pub(crate) watchers: u32,
    pub(crate) leases: u64,
    pub(crate) voters: usize,
    pub(crate) data_mib: u64,
    pub(crate) time_limit: u64,
    pub(crate) directory: Option<PathBuf>,
    pub(crate) json: Option<PathBuf>,
    pub(crate) svg: Option<PathBuf>,
}

impl InstrumentArgs {
    fn new(task: InstrumentTask) -> Self {
        Self {
            task,
            ours: None,
            peers: Vec::new(),
            cases: Vec::new(),
            seconds: 3,
            runs: 3,
            value_bytes: 256,
            keys: 100_000,
            watchers: 1_000,
            leases: 10_000,
            voters: 7,
            data_mib: 64,
            time_limit: 900,
            directory: None,
            json: None,
            svg: None,
        }
    }

    pub(crate) fn parse(
        task: InstrumentTask,
        mut args: impl Iterator<Item = String>,
    ) -> Result<Self, UsageError> {
        let mut parsed = Self::new(task);
        while let Some(option) = args.next() {
            parsed.set(&option, &mut args)?;
        }
        Ok(parsed)
    }

    fn set(
        &mut self,
        option: &str,
        args: &mut impl Iterator<Item = String>,
    ) -> Result<(), UsageError> {
        match option {
            "--ours" => self.ours = Some(value("--ours", args, |_| true)?),
            "--peer" => {
                let given: String = value("--peer", args, |text: &String| text.contains('='))?;
                let (name, program) = given.split_once('=').unwrap_or_default();
                self.peers.push(System { name: name.into(), program: program.into() });
            }
            "--cases" => {
                let given: String = value("--cases", args, |_| true)?;
                self.cases = given.split(',').map(String::from).collect();
            }
            "--seconds" => self.seconds = value("--seconds", args, |n| (1..=600).contains(n))?,
            "--runs" => self.runs = value("--runs", args, |n| (1..=100).contains(n))?,
            "--value-bytes" => {
                self.value_bytes = value("--value-bytes", args, |n| (16..=1_000_000).contains(n))?;
            }
            "--keys" => self.keys = value("--keys", args, |n| *n > 0)?,
            "--watchers" => {
                self.watchers = value("--watchers", args, |n| (1..=10_000).contains(n))?
            }
            "--leases" => self.leases = value("--leases", args, |n| *n > 0)?,
            "--voters" => self.voters = value("--voters", args, |n| (1..=15).contains(n))?,
            "--data-mib" => {
                self.data_mib = value("--data-mib", args, |n| (1..=65_536).contains(n))?
            }
            "--time-limit" => self.time_limit = value("--time-limit", args, |n| *n > 0)?,
            "--directory" => self.directory = Some(value("--directory", args, |_| true)?),
            "--json" => self.json = Some(value("--json", args, |_| true)?),
            "--svg" => self.svg = Some(value("--svg", args, |_| true)?),
            _ => return Err(UsageError::UnknownOption(option.into())),
        }
        Ok(())
    }

    /// Our program, which also makes the load.
    pub(super) fn program(&self) -> PathBuf {
        let beside = || std::env::current_exe().ok().map(|exe| exe.with_file_name("quorate"));
        self.ours.clone().or_else(beside).unwrap_or_else(|| "quorate".into())
    }

    /// Everything to measure, ours first.
    pub(super) fn systems(&self) -> Vec<System> {
        let ours = System { name: "quorate".into(), program: self.program() };
        std::iter::once(ours).chain(self.peers.iter().cloned()).collect()
    }

    /// The names that were asked for, or all of them.
    pub(super) fn cases_of<'a>(
        &self,
        all: &[&'a str],
    ) -> Result<Vec<&'a str>, super::InstrumentError> {
        if let Some(unknown) = self.cases.iter().find(|case| !all.contains(&case.as_str())) {
            let text = format!("no case {unknown:?}; there are: {}", all.join(", "));
            return Err(super::InstrumentError::new(text));
        }
        let wanted = |case: &&&str| self.cases.is_empty() || self.cases.iter().any(|c| c == **case);
        Ok(all.iter().filter(wanted).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<InstrumentArgs, UsageError> {
        InstrumentArgs::parse(InstrumentTask::Server, line.split_whitespace().map(String::from))
    }

    #[test]
    fn peers_are_measured_after_ours() {
        let args = parsed("--ours /x/quorate --peer etcd=/usr/bin/etcd --runs 2").unwrap();
        let systems = args.systems();
        assert_eq!(systems[0].program, PathBuf::from("/x/quorate"));
        assert_eq!((systems[1].name.as_str(), systems[1].is_etcd()), ("etcd", true));
        assert!(!systems[0].is_etcd());
        assert_eq!(args.runs, 2);
    }

    #[test]
    fn unknown_options_values_and_cases_are_refused() {
        for bad in ["--peer etcd", "--seconds 0", "--fast", "--keys"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        let args = parsed("--cases put-1,other").unwrap();
        let refused = args.cases_of(&["put-1", "put-64"]).unwrap_err().to_string();
        assert!(refused.contains("\"other\"") && refused.contains("put-64"), "{refused}");
        let args = parsed("--cases put-64").unwrap();
        assert_eq!(args.cases_of(&["put-1", "put-64"]).unwrap(), ["put-64"]);
    }
}
