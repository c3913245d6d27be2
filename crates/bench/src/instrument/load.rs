//! Load from `quorate bench`, and what it measured.

use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::{InstrumentError, Session};

/// What to send, as arguments of `quorate bench`.
#[derive(Clone, Copy, Debug)]
pub(super) struct BenchLoad<'a> {
    /// `put`, `get`, `txn`, `mixed`, `watch` or `lease`.
    pub(super) operation: &'a str,
    pub(super) clients: u32,
    pub(super) seconds: u64,
    pub(super) keys: u64,
    pub(super) value_bytes: u32,
    /// More arguments.
    pub(super) more: &'a [&'a str],
}

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub(super) struct LoadResult {
    pub(super) done: f64,
    pub(super) per_second: f64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    pub(super) p999_ms: f64,
    pub(super) longest_ms: f64,
    pub(super) gap_ms: f64,
    pub(super) failed: f64,
}

impl BenchLoad<'_> {
    /// Runs it to its end.
    pub(super) fn run(
        &self,
        session: &Session<'_>,
        endpoints: &str,
    ) -> Result<LoadResult, InstrumentError> {
        self.start(session, endpoints)?.finish()
    }

    /// Starts it beside this program.
    pub(super) fn start(
        &self,
        session: &Session<'_>,
        endpoints: &str,
    ) -> Result<RunningLoad, InstrumentError> {
        let program = session.args.program();
        let connections = self.clients.min(CONNECTIONS_MAX);
        let child = Command::new(&program)
            .args(["bench", self.operation, "-w", "json", "--endpoints", endpoints])
            .args(["--clients", &self.clients.to_string()])
            .args(["--connections", &connections.to_string()])
            .args(["--seconds", &self.seconds.to_string()])
            .args(["--keys", &self.keys.to_string()])
            .args(["--value-bytes", &self.value_bytes.to_string()])
            .args(self.more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let doing = format!("cannot start {} bench", program.display());
        Ok(RunningLoad(child.map_err(InstrumentError::when(doing))?))
    }
}

pub(super) struct RunningLoad(Child);

impl RunningLoad {
    pub(super) fn finish(self) -> Result<LoadResult, InstrumentError> {
        let output = self.0.wait_with_output().map_err(InstrumentError::when("the load"))?;
        let reply: Value = serde_json::from_slice(&output.stdout).map_err(|_| {
            let text = String::from_utf8_lossy(&output.stderr);
            InstrumentError::new(format!("the load failed: {}", text.trim()))
        })?;
        Ok(LoadResult::of(&reply))
    }
}

impl LoadResult {
    fn of(reply: &Value) -> Self {
        let number = |name: &str| reply[name].as_f64().unwrap_or(0.0);
        let errors = reply["errors"].as_object().into_iter().flatten();
        Self {
            done: number("done"),
            per_second: number("perSecond"),
            p50_ms: number("p50Micros") / 1e3,
            p99_ms: number("p99Micros") / 1e3,
            p999_ms: number("p999Micros") / 1e3,
            longest_ms: number("longestMicros") / 1e3,
            gap_ms: number("longestGapMicros") / 1e3,
            // The sum of nothing is negative zero.
            failed: errors.filter_map(|(_, count)| count.as_f64()).sum::<f64>() + 0.0,
        }
    }
}

/// Connections that clients share; the same for every system.
const CONNECTIONS_MAX: u32 = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_report_of_a_load_is_read() {
        let reply = json!({
            "done": 100, "perSecond": 50.0, "p50Micros": 1500, "p99Micros": 2000,
            "p999Micros": 3000, "longestMicros": 4000, "longestGapMicros": 9000,
            "errors": {"no leader": 2, "timeout": 3},
        });
        let result = LoadResult::of(&reply);
        assert_eq!((result.done, result.p50_ms, result.gap_ms), (100.0, 1.5, 9.0));
        assert_eq!(result.failed, 5.0);
        let complete = LoadResult::of(&json!({"done": 1, "errors": {}}));
        assert_eq!(complete.failed.to_string(), "0");
    }
}
