//! The cost of an idle member: its ticks, its memory, and the quorum index, which is computed for
//! every acknowledgement.

use std::time::{Duration, Instant};

use crate::counting::Counts;
use crate::library::Library;
use crate::measure::{Spread, per_operation};
use crate::table::BenchTable;

/// No election and no heartbeat is due before this many ticks.
pub(crate) const IDLE_TICKS: u32 = 1 << 29;

/// The numbers of voters, and of outgoing voters in a joint membership.
pub(crate) const VOTERS: [(&[u64], &[u64]); 4] = [
    (&[1, 2, 3], &[]),
    (&[1, 2, 3, 4, 5], &[]),
    (&[1, 2, 3, 4, 5, 6, 7], &[]),
    (&[1, 2, 3], &[3, 4, 5]),
];

/// Repeats an action this many times.
pub(crate) type Probe = Box<dyn FnMut(u64)>;

/// The measurements of one library.
pub(crate) struct Probes {
    /// A tick without output, including the check for output.
    pub(crate) tick_follower: Probe,
    pub(crate) tick_leader: Probe,
    /// A tick with which a leader sends heartbeats to two peers, including the messages.
    pub(crate) beat: Probe,
    /// The quorum index of each of `VOTERS`.
    pub(crate) quorums: [Probe; VOTERS.len()],
    pub(crate) memory: Memory,
    /// The same for members in a compact form, if the library has one.
    pub(crate) hibernated: Option<Memory>,
}

/// Heap bytes of one member of an idle cluster of three, including the member itself, without its
/// storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) follower: u64,
    pub(crate) leader: u64,
}

pub(crate) fn table(libraries: &[Library]) -> BenchTable {
    let mut table =
        BenchTable::new(&["idle and small", "library", "ns", "allocs", "bytes", "ratio"]);
    let mut all: Vec<Probes> = libraries.iter().map(|library| library.probes()).collect();
    time(&mut table, "tick, follower", libraries, &mut all, |probes| &mut probes.tick_follower);
    time(&mut table, "tick, leader, no heartbeat", libraries, &mut all, |p| &mut p.tick_leader);
    time(&mut table, "tick, leader, 2 heartbeats", libraries, &mut all, |probes| &mut probes.beat);
    for (at, (incoming, outgoing)) in VOTERS.iter().enumerate() {
        let label = match (incoming.len(), outgoing.len()) {
            (voters, 0) => format!("quorum index, {voters} voters"),
            (voters, leaving) => format!("quorum index, joint {voters}+{leaving}"),
        };
        time(&mut table, &label, libraries, &mut all, |probes| &mut probes.quorums[at]);
    }
    let awake: Vec<Memory> = all.iter().map(|probes| probes.memory).collect();
    bytes(&mut table, "memory, idle follower", libraries, &awake, |memory| memory.follower);
    bytes(&mut table, "memory, idle leader", libraries, &awake, |memory| memory.leader);
    let least: Vec<Memory> =
        all.iter().map(|probes| probes.hibernated.unwrap_or(probes.memory)).collect();
    bytes(&mut table, "memory, hibernated follower", libraries, &least, |memory| memory.follower);
    bytes(&mut table, "memory, hibernated leader", libraries, &least, |memory| memory.leader);
    table
}

/// Measures one probe of every library, alternating between them.
fn time(
    table: &mut BenchTable,
    label: &str,
    libraries: &[Library],
    all: &mut [Probes],
    pick: impl Fn(&mut Probes) -> &mut Probe,
) {
    const SLICE: Duration = Duration::from_millis(4);
    const ROUNDS: usize = 15;
    let mut times = Vec::new();
    for probes in all.iter_mut() {
        times.push(calibrate(pick(probes), SLICE));
    }
    let mut nanos = vec![Vec::new(); libraries.len()];
    let mut counts = vec![Counts::default(); libraries.len()];
    for _ in 0..ROUNDS {
        for (at, probes) in all.iter_mut().enumerate() {
            let probe = pick(probes);
            let (before, start) = (Counts::now(), Instant::now());
            probe(times[at]);
            let took = start.elapsed();
            counts[at] = Counts::since(before);
            nanos[at].push(took.as_nanos() as f64 / times[at] as f64);
        }
    }
    let ratio = Spread::of_ratios(&nanos);
    for (at, library) in libraries.iter().enumerate() {
        table.row(&[
            label.to_string(),
            library.to_string(),
            format!("{:.1}", Spread::of(&nanos[at]).median),
            format!("{:.1}", per_operation(counts[at].allocations, times[at])),
            format!("{:.0}", per_operation(counts[at].bytes, times[at])),
            ratio.as_ref().filter(|_| at > 0).map(|spread| spread.times()).unwrap_or_default(),
        ]);
    }
}

/// How often the probe runs in this time.
fn calibrate(probe: &mut Probe, slice: Duration) -> u64 {
    let mut times = 64;
    loop {
        let start = Instant::now();
        probe(times);
        if start.elapsed() * 4 > slice {
            let nanos = start.elapsed().as_nanos().max(1) as u64;
            return (times * slice.as_nanos() as u64 / nanos).max(1);
        }
        times *= 2;
    }
}

fn bytes(
    table: &mut BenchTable,
    label: &str,
    libraries: &[Library],
    all: &[Memory],
    pick: impl Fn(&Memory) -> u64,
) {
    let ours = all.first().map_or(0, &pick);
    for (at, (library, memory)) in libraries.iter().zip(all).enumerate() {
        let bytes = pick(memory);
        let ratio =
            if at > 0 { format!("{:.1}x", bytes as f64 / ours as f64) } else { String::new() };
        let empty = String::new();
        table.row(&[
            label.to_string(),
            library.to_string(),
            empty.clone(),
            empty,
            bytes.to_string(),
            ratio,
        ]);
    }
}
