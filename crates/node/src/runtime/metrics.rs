//! Counters and gauges of a running member, and hooks for measurements.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_core::{Event, Index};

use crate::outcome::{RequestError, RequestOutcome};

/// Called by a running member when something happens, on the member's threads: the methods
/// must be quick and must not block.
pub trait NodeObserver: Send + Sync + 'static {
    /// A role, leader or membership changed, a change is settled, a goal took a step, …
    fn on_event(&self, _event: &Event) {}

    /// `saves` became durable with one sync that took this long.
    fn on_sync(&self, _took: Duration, _saves: u64) {}

    /// A save with this many bytes of entries was written, which took this long.
    fn on_write(&self, _took: Duration, _bytes: u64) {}

    /// `entries`, up to this index, ran on the machine and took this long.
    fn on_applied(&self, _index: Index, _entries: u64, _took: Duration) {}
}

/// Observes nothing.
impl NodeObserver for () {}

/// The counters and gauges of a member at one moment. All but the two gauges only grow.
/// [`Metrics::iter`] lists them in one form for any metrics system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Commands that were proposed on this member.
    pub proposals: u64,
    /// Linearizable reads on this member.
    pub reads: u64,
    /// Requests that were done.
    pub done: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests whose outcome is unknown.
    pub unknown: u64,
    /// Gauge: requests that have no reply yet.
    pub open_requests: u64,
    /// Gauge: 1 while the log of this member lacks what it confirmed, so that it does not vote.
    pub log_lost: u64,
    /// Gauge: peers that this leader does not count, because their logs lack what they
    /// confirmed.
    pub peers_lost: u64,
    /// Saves that were written.
    pub saves: u64,
    /// Gauge: saves that wait for the disk.
    pub saves_waiting: u64,
    /// Syncs of the log; fewer than saves, because one sync makes several durable.
    pub syncs: u64,
    /// Time spent in syncs.
    pub sync_time: Duration,
    /// Entries that were applied to the machine.
    pub applied: u64,
    /// Time spent applying entries.
    pub apply_time: Duration,
    /// How often the member's task woke up and found work.
    pub turns: u64,
    /// Messages sent to peers.
    pub sent: u64,
    /// Messages received from peers.
    pub received: u64,
    /// Snapshots that a peer received.
    pub snapshots_sent: u64,
    /// Snapshots that could not be sent.
    pub snapshots_lost: u64,
    /// Snapshots of this member's machine that were written.
    pub snapshots_taken: u64,
    /// Inputs of the core that had no effect, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// The counters of the transport, for all members of the process together.
    pub transport: BTreeMap<&'static str, u64>,
}

/// One number of a member, as a metrics system needs it.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metric {
    /// Unique together with the label, such as `quorate_proposals_total`.
    pub name: &'static str,
    /// What it counts, as a sentence.
    pub help: &'static str,
    /// How it behaves over time.
    pub kind: MetricKind,
    /// The name and the value of its label, if it has one.
    pub label: Option<(&'static str, &'static str)>,
    /// Times are in seconds.
    pub value: f64,
}

/// How a metric behaves over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// It only grows while the member runs.
    Counter,
    /// It goes up and down.
    Gauge,
}

impl MetricKind {
    /// The word for it in Prometheus text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

impl Metrics {
    /// All numbers in one form, for an adapter to any metrics system. Metrics of one name are
    /// consecutive.
    pub fn iter(&self) -> impl Iterator<Item = Metric> + '_ {
        let dropped = self.dropped.iter().map(|(reason, count)| {
            let help = "Inputs of the Raft core that had no effect, by reason.";
            labelled("quorate_inputs_dropped_total", help, ("reason", reason), *count)
        });
        let gauges = TRANSPORT_GAUGES
            .iter()
            .filter_map(|(key, name, help)| Some(gauge(name, help, *self.transport.get(key)?)));
        let is_gauge = |key: &str| TRANSPORT_GAUGES.iter().any(|(gauge, ..)| *gauge == key);
        let events = self.transport.iter().filter(move |(event, _)| !is_gauge(event));
        let transport = events.map(|(event, count)| {
            let help = "Events of the transport, for all members of the process, by name.";
            labelled("quorate_transport_total", help, ("event", event), *count)
        });
        self.single().into_iter().chain(gauges).chain(dropped).chain(transport)
    }

    /// All numbers in the text format of Prometheus, each with these labels, given as name and
    /// value: for example the cluster and the member, as 16 hex digits.
    pub fn to_prometheus(&self, labels: &[(&str, &str)]) -> String {
        let (mut text, mut last) = (String::new(), "");
        let common = labels.iter().map(|(label, content)| label_text(label, content));
        let common: Vec<String> = common.collect();
        for Metric { name, help, kind, label, value } in self.iter() {
            // Writing to a string cannot fail.
            if name != last {
                let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
                last = name;
            }
            let own = label.map(|(label, content)| label_text(label, content));
            let all: Vec<&str> = common.iter().chain(&own).map(String::as_str).collect();
            let _ = if all.is_empty() {
                writeln!(text, "{name} {value}")
            } else {
                writeln!(text, "{name}{{{}}} {value}", all.join(","))
            };
        }
        text
    }

    fn single(&self) -> [Metric; 20] {
        let time = |time: Duration| time.as_secs_f64();
        [
            counter("quorate_proposals_total", "Commands proposed on this member.", self.proposals),
            counter("quorate_reads_total", "Linearizable reads on this member.", self.reads),
            counter("quorate_requests_done_total", "Requests that were done.", self.done),
            counter("quorate_requests_refused_total", "Requests that were refused.", self.refused),
            counter(
                "quorate_requests_unknown_total",
                "Requests whose outcome is unknown.",
                self.unknown,
            ),
            gauge("quorate_requests_open", "Requests without a reply yet.", self.open_requests),
            gauge(
                "quorate_log_lost",
                "1 while the log lacks what this member confirmed, so that it does not vote.",
                self.log_lost,
            ),
            gauge(
                "quorate_peers_lost",
                "Members that the leader does not count: their logs lack what they confirmed.",
                self.peers_lost,
            ),
            counter("quorate_saves_total", "Saves that were written.", self.saves),
            gauge("quorate_saves_waiting", "Saves that wait for the disk.", self.saves_waiting),
            counter("quorate_syncs_total", "Syncs of the log.", self.syncs),
            Metric {
                value: time(self.sync_time),
                ..counter("quorate_sync_seconds_total", "Time spent in syncs.", 0)
            },
            counter("quorate_entries_applied_total", "Entries that were applied.", self.applied),
            Metric {
                value: time(self.apply_time),
                ..counter("quorate_apply_seconds_total", "Time spent applying entries.", 0)
            },
            counter("quorate_task_wakeups_total", "Wake-ups of the member's task.", self.turns),
            counter("quorate_messages_sent_total", "Messages sent to peers.", self.sent),
            counter("quorate_messages_received_total", "Messages from peers.", self.received),
            counter("quorate_snapshots_sent_total", "Snapshots sent.", self.snapshots_sent),
            counter("quorate_snapshots_lost_total", "Snapshots not sent.", self.snapshots_lost),
            counter("quorate_snapshots_taken_total", "Snapshots taken.", self.snapshots_taken),
        ]
    }
}

fn label_text(label: &str, content: &str) -> String {
    let content = content.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{label}=\"{content}\"")
}
/// What a transport reports that goes up and down: its name there, the metric, and the help.
const TRANSPORT_GAUGES: [(&str, &str, &str); 4] = [
    (
        "buffered_bytes",
        "quorate_peer_buffered_bytes",
        "Memory of frames that arrived from peers and are not processed yet.",
    ),
    (
        "buffered_bytes_limit",
        "quorate_peer_buffered_bytes_limit",
        "The limit of quorate_peer_buffered_bytes.",
    ),
    (
        "queued_bytes",
        "quorate_peer_queued_bytes",
        "Memory of messages to peers that are not written yet.",
    ),
    (
        "queued_bytes_limit",
        "quorate_peer_queued_bytes_limit",
        "The limit of quorate_peer_queued_bytes: 64 MiB for each address.",
    ),
];

fn counter(name: &'static str, help: &'static str, value: u64) -> Metric {
    Metric { name, help, kind: MetricKind::Counter, label: None, value: value as f64 }
}

fn gauge(name: &'static str, help: &'static str, value: u64) -> Metric {
    Metric { kind: MetricKind::Gauge, ..counter(name, help, value) }
}

fn labelled(
    name: &'static str,
    help: &'static str,
    label: (&'static str, &'static str),
    value: u64,
) -> Metric {
    Metric { label: Some(label), ..counter(name, help, value) }
}

/// The counters that the member's tasks and threads update.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) proposals: Count,
    pub(crate) reads: Count,
    pub(crate) done: Count,
    pub(crate) refused: Count,
    pub(crate) unknown: Count,
    pub(crate) open_requests: Count,
    pub(crate) log_lost: Count,
    pub(crate) peers_lost: Count,
    pub(crate) saves: Count,
    pub(crate) saves_waiting: Count,
    pub(crate) syncs: Count,
    pub(crate) sync_nanos: Count,
    pub(crate) applied: Count,
    pub(crate) apply_nanos: Count,
    pub(crate) turns: Count,
    pub(crate) sent: Count,
    pub(crate) received: Count,
    pub(crate) snapshots_sent: Count,
    pub(crate) snapshots_lost: Count,
    pub(crate) snapshots_taken: Count,
}

/// A number that threads share.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(crate) fn count_sync(&self, took: Duration, saves: u64) {
        self.syncs.add(1);
        self.saves.add(saves);
        self.sync_nanos.add(nanos(took));
    }

    pub(crate) fn count_answer(&self, answer: &RequestOutcome) {
        match answer {
            Ok(_) => self.done.add(1),
            Err(RequestError::Refused(_)) => self.refused.add(1),
            Err(RequestError::Unknown(_)) => self.unknown.add(1),
        }
    }

    pub(crate) fn count_applied(&self, took: Duration, entries: u64) {
        self.applied.add(entries);
        self.apply_nanos.add(nanos(took));
    }

    /// Without the counters of the driver and of the transport.
    pub(crate) fn read(&self) -> Metrics {
        Metrics {
            proposals: self.proposals.get(),
            reads: self.reads.get(),
            done: self.done.get(),
            refused: self.refused.get(),
            unknown: self.unknown.get(),
            open_requests: self.open_requests.get(),
            log_lost: self.log_lost.get(),
            peers_lost: self.peers_lost.get(),
            saves: self.saves.get(),
            saves_waiting: self.saves_waiting.get(),
            syncs: self.syncs.get(),
            sync_time: Duration::from_nanos(self.sync_nanos.get()),
            applied: self.applied.get(),
            apply_time: Duration::from_nanos(self.apply_nanos.get()),
            turns: self.turns.get(),
            sent: self.sent.get(),
            received: self.received.get(),
            snapshots_sent: self.snapshots_sent.get(),
            snapshots_lost: self.snapshots_lost.get(),
            snapshots_taken: self.snapshots_taken.get(),
            ..Metrics::default()
        }
    }
}

fn nanos(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_listed_once_each_and_written_as_prometheus_text() {
        let mut metrics = Metrics { proposals: 7, open_requests: 2, ..Metrics::default() };
        metrics.sync_time = Duration::from_millis(1500);
        metrics.dropped.insert("old_term", 3);
        metrics.transport.extend([("bytes_sent", 10), ("connected", 1)]);
        let mut seen: Vec<_> = metrics.iter().map(|metric| (metric.name, metric.label)).collect();
        let count = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), count);
        let text = metrics.to_prometheus(&[]);
        for line in [
            "# TYPE quorate_proposals_total counter",
            "quorate_proposals_total 7",
            "# TYPE quorate_requests_open gauge",
            "quorate_requests_open 2",
            "quorate_sync_seconds_total 1.5",
            "quorate_inputs_dropped_total{reason=\"old_term\"} 3",
            "quorate_transport_total{event=\"bytes_sent\"} 10",
            "quorate_transport_total{event=\"connected\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
        assert_eq!(text.matches("# TYPE quorate_transport_total").count(), 1);
    }

    #[test]
    fn common_labels_precede_the_label_of_a_metric() {
        let mut metrics = Metrics { proposals: 7, ..Metrics::default() };
        metrics.dropped.insert("old_term", 3);
        let text = metrics.to_prometheus(&[("cluster", "00000000000000c1"), ("zone", "a\"\\b")]);
        for line in [
            "quorate_proposals_total{cluster=\"00000000000000c1\",zone=\"a\\\"\\\\b\"} 7",
            "quorate_inputs_dropped_total{cluster=\"00000000000000c1\",zone=\"a\\\"\\\\b\",\
             reason=\"old_term\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
