//! What a run showed.

use std::time::Duration;

use serde_json::json;

use super::client::Outcome;
use crate::arguments::Operation;

pub(crate) struct Report {
    pub(crate) operation: Operation,
    pub(crate) clients: u32,
    pub(crate) connections: usize,
    pub(crate) took: Duration,
    pub(crate) gap: Duration,
    /// Of the servers, when it was measured.
    pub(crate) processor: Duration,
    pub(crate) measured: bool,
    pub(crate) outcome: Outcome,
}

impl Report {
    pub(crate) fn text(&self) -> String {
        let times = &self.outcome.times;
        let mut text = format!(
            "{}: {} clients on {} connections, {:.1} s\n",
            self.name(),
            self.clients,
            self.connections,
            self.took.as_secs_f64()
        );
        text += &format!("  throughput   {:.0} a second ({} in all)\n", self.rate(), times.total());
        text += &format!(
            "  latency      p50 {}  p99 {}  p99.9 {}  longest {}\n",
            millis(times.per_mille(500)),
            millis(times.per_mille(990)),
            millis(times.per_mille(999)),
            millis(times.longest())
        );
        text += &format!("  longest gap  {}\n", millis(self.gap));
        text += &format!("  errors       {}\n", self.outcome.errors_total());
        for (why, count) in &self.outcome.errors {
            text += &format!("    {count} x {why}\n");
        }
        if self.operation == Operation::Watch {
            text += &format!("  events lost  {}\n", self.outcome.missing);
        }
        if let Some(cost) = self.cost() {
            let all = self.processor.as_secs_f64();
            text += &format!("  server CPU   {all:.2} s, {cost:.2} s for 100k operations\n");
        }
        text
    }

    pub(crate) fn as_json(&self) -> serde_json::Value {
        let times = &self.outcome.times;
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
            "errors": self.outcome.errors,
            "eventsLost": self.outcome.missing,
            "serverCpuSeconds": self.measured.then_some(self.processor.as_secs_f64()),
            "serverCpuSecondsPer100k": self.cost(),
        })
    }

    fn name(&self) -> &'static str {
        match self.operation {
            Operation::Put => "put",
            Operation::Get => "get",
            Operation::Txn => "txn",
            Operation::Watch => "watch",
        }
    }

    fn rate(&self) -> f64 {
        self.outcome.times.total() as f64 / self.took.as_secs_f64()
    }

    /// CPU seconds of the servers for each 100,000 operations that succeeded.
    fn cost(&self) -> Option<f64> {
        let total = self.outcome.times.total();
        (self.measured && total > 0)
            .then(|| self.processor.as_secs_f64() * 100_000.0 / total as f64)
    }
}

pub(crate) fn millis(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(done: u64) -> Report {
        let mut outcome = Outcome::new();
        (0..done).for_each(|_| outcome.times.record(Duration::from_millis(2)));
        outcome.failed("no leader".to_string());
        Report {
            operation: Operation::Put,
            clients: 4,
            connections: 2,
            took: Duration::from_secs(2),
            gap: Duration::from_millis(5),
            processor: Duration::from_millis(100),
            measured: true,
            outcome,
        }
    }

    #[test]
    fn arithmetic() {
        let json = report(1000).as_json();
        assert_eq!(json["perSecond"], 500.0);
        assert_eq!(json["serverCpuSecondsPer100k"], 10.0);
        assert_eq!(json["p50Micros"], 2000);
        assert_eq!(json["errors"]["no leader"], 1);
        assert!(report(0).as_json()["serverCpuSecondsPer100k"].is_null());
    }

    #[test]
    fn a_page() {
        let text = report(1000).text();
        assert!(text.contains("put: 4 clients on 2 connections, 2.0 s\n"), "{text}");
        assert!(text.contains("500 a second (1000 in all)"), "{text}");
        assert!(text.contains("1 x no leader"), "{text}");
        assert!(text.contains("0.10 s, 10.00 s for 100k operations"), "{text}");
        assert!(!text.contains("events lost"), "{text}");
    }
}
