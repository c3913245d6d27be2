//! The report of a benchmark, as text and as JSON.

use std::time::Duration;

use serde_json::json;

use super::client::BenchResult;
use crate::arguments::BenchOperation;

pub(crate) struct BenchReport {
    pub(crate) operation: BenchOperation,
    pub(crate) clients: u32,
    pub(crate) connections: usize,
    pub(crate) took: Duration,
    pub(crate) gap: Duration,
    /// CPU time of the servers, if it was measured.
    pub(crate) server_cpu: Option<Duration>,
    pub(crate) result: BenchResult,
}

impl BenchReport {
    pub(crate) fn text(&self) -> String {
        let times = &self.result.times;
        let mut text = format!(
            "{}: {} clients on {} connections, {:.1} s\n",
            self.name(),
            self.clients,
            self.connections,
            self.took.as_secs_f64()
        );
        text +=
            &format!("  throughput   {:.0} per second ({} in total)\n", self.rate(), times.total());
        text += &format!(
            "  latency      p50 {}  p99 {}  p99.9 {}  longest {}\n",
            millis(times.per_mille(500)),
            millis(times.per_mille(990)),
            millis(times.per_mille(999)),
            millis(times.longest())
        );
        text += &format!("  longest gap  {}\n", millis(self.gap));
        text += &format!("  errors       {}\n", self.result.errors_total());
        for (error, count) in &self.result.errors {
            text += &format!("    {count} x {error}\n");
        }
        if self.operation == BenchOperation::Watch {
            text += &format!("  events lost  {}\n", self.result.missing);
        }
        if let (Some(cpu), Some(cost)) = (self.server_cpu, self.cpu_per_100k()) {
            let total = cpu.as_secs_f64();
            text += &format!("  server CPU   {total:.2} s, {cost:.2} s per 100k operations\n");
        }
        text
    }

    pub(crate) fn as_json(&self) -> serde_json::Value {
        let times = &self.result.times;
        let micros = |part| times.per_mille(part).as_micros() as u64;
        json!({
            "operation": self.name(),
            "clients": self.clients,
            "connections": self.connections,
            "seconds": self.took.as_secs_f64(),
            "done": times.total(),
            "perSecond": self.rate(),
            "p50Micros": micros(500),
            "p99Micros": micros(990),
            "p999Micros": micros(999),
            "longestMicros": times.longest().as_micros() as u64,
            "longestGapMicros": self.gap.as_micros() as u64,
            "errors": self.result.errors,
            "eventsLost": self.result.missing,
            "serverCpuSeconds": self.server_cpu.map(|cpu| cpu.as_secs_f64()),
            "serverCpuSecondsPer100k": self.cpu_per_100k(),
        })
    }

    fn name(&self) -> &'static str {
        match self.operation {
            BenchOperation::Put => "put",
            BenchOperation::Get => "get",
            BenchOperation::Txn => "txn",
            BenchOperation::Mixed => "mixed",
            BenchOperation::Watch => "watch",
            BenchOperation::Lease => "lease",
        }
    }

    fn rate(&self) -> f64 {
        self.result.times.total() as f64 / self.took.as_secs_f64()
    }

    /// CPU seconds of the servers per 100,000 successful operations.
    fn cpu_per_100k(&self) -> Option<f64> {
        let total = self.result.times.total();
        let cpu = self.server_cpu.filter(|_| total > 0)?;
        Some(cpu.as_secs_f64() * 100_000.0 / total as f64)
    }
}

pub(crate) fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(done: u64) -> BenchReport {
        let mut result = BenchResult::new();
        (0..done).for_each(|_| result.times.record(Duration::from_millis(2)));
        result.failed("no leader".to_string());
        BenchReport {
            operation: BenchOperation::Put,
            clients: 4,
            connections: 2,
            took: Duration::from_secs(2),
            gap: Duration::from_millis(5),
            server_cpu: Some(Duration::from_millis(100)),
            result,
        }
    }

    #[test]
    fn rates_and_costs_are_computed() {
        let json = report(1000).as_json();
        assert_eq!(json["perSecond"], 500.0);
        assert_eq!(json["serverCpuSecondsPer100k"], 10.0);
        assert_eq!(json["p50Micros"], 2000);
        assert_eq!(json["errors"]["no leader"], 1);
        assert!(report(0).as_json()["serverCpuSecondsPer100k"].is_null());
    }

    #[test]
    fn the_text_contains_all_results() {
        let text = report(1000).text();
        assert!(text.contains("put: 4 clients on 2 connections, 2.0 s\n"), "{text}");
        assert!(text.contains("500 per second (1000 in total)"), "{text}");
        assert!(text.contains("1 x no leader"), "{text}");
        assert!(text.contains("0.10 s, 10.00 s per 100k operations"), "{text}");
        assert!(!text.contains("events lost"), "{text}");
    }
}
