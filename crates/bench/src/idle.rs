//! What a member costs that has nothing to do: its ticks, its memory, and the one
//! computation that every acknowledgement asks for.

use std::time::{Duration, Instant};

use crate::counting::Counts;
use crate::measure::{Spread, per_operation};
use crate::side::Side;
use crate::table::Table;

/// No election and no heartbeat is due before this many ticks.
pub(crate) const IDLE_TICKS: u32 = 1 << 29;

/// Voters, and outgoing voters while they are being exchanged.
pub(crate) const VOTERS: [(&[u64], &[u64]); 4] = [
    (&[1, 2, 3], &[]),
    (&[1, 2, 3, 4, 5], &[]),
    (&[1, 2, 3, 4, 5, 6, 7], &[]),
    (&[1, 2, 3], &[3, 4, 5]),
];

/// Does something this many times.
pub(crate) type Probe = Box<dyn FnMut(u64)>;

/// What one side offers to be measured.
pub(crate) struct Probes {
    /// A tick that leads to nothing, and asking whether it did.
    pub(crate) tick_follower: Probe,
    pub(crate) tick_leader: Probe,
    /// A tick with which a leader sends heartbeats to two peers; messages included.
    pub(crate) beat: Probe,
    /// The quorum index of each of `VOTERS`.
    pub(crate) quorums: [Probe; VOTERS.len()],
    pub(crate) memory: Memory,
}

/// Bytes on the heap that one member of a quiet cluster of three holds, the member
/// itself included, its storage left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) follower: u64,
    pub(crate) leader: u64,
}

pub(crate) fn table(sides: &[Side]) -> Table {
    let mut table = Table::new(&["idle and small", "side", "ns", "allocs", "bytes", "ratio"]);
    let mut all: Vec<Probes> = sides.iter().map(|side| side.probes()).collect();
    time(&mut table, "tick, follower", sides, &mut all, |probes| &mut probes.tick_follower);
    time(&mut table, "tick, leader, no beat due", sides, &mut all, |p| &mut p.tick_leader);
    time(&mut table, "tick, leader, 2 heartbeats", sides, &mut all, |probes| &mut probes.beat);
    for (at, (incoming, outgoing)) in VOTERS.iter().enumerate() {
        let label = match (incoming.len(), outgoing.len()) {
            (voters, 0) => format!("quorum index, {voters} voters"),
            (voters, leaving) => format!("quorum index, joint {voters}+{leaving}"),
        };
        time(&mut table, &label, sides, &mut all, |probes| &mut probes.quorums[at]);
    }
    bytes(&mut table, "memory, idle follower", sides, &all, |memory| memory.follower);
    bytes(&mut table, "memory, idle leader", sides, &all, |memory| memory.leader);
    table
}

/// Times one probe of every side, in turn.
fn time(
    table: &mut Table,
    label: &str,
    sides: &[Side],
    all: &mut [Probes],
    pick: impl Fn(&mut Probes) -> &mut Probe,
) {
    const SLICE: Duration = Duration::from_millis(4);
    const ROUNDS: usize = 15;
    let mut times = Vec::new();
    for probes in all.iter_mut() {
        times.push(calibrate(pick(probes), SLICE));
    }
    let mut nanos = vec![Vec::new(); sides.len()];
    let mut counts = vec![Counts::default(); sides.len()];
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
    for (at, side) in sides.iter().enumerate() {
        table.row(&[
            label.to_string(),
            side.to_string(),
            format!("{:.1}", Spread::of(&nanos[at]).median),
            format!("{:.1}", per_operation(counts[at].allocations, times[at])),
            format!("{:.0}", per_operation(counts[at].bytes, times[at])),
            ratio.as_ref().filter(|_| at > 0).map(|spread| spread.times()).unwrap_or_default(),
        ]);
    }
}

/// How many times the probe can be done in this long.
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
    table: &mut Table,
    label: &str,
    sides: &[Side],
    all: &[Probes],
    pick: impl Fn(&Memory) -> u64,
) {
    let ours = all.first().map_or(0, |probes| pick(&probes.memory));
    for (at, (side, probes)) in sides.iter().zip(all).enumerate() {
        let bytes = pick(&probes.memory);
        let ratio =
            if at > 0 { format!("{:.1}x", bytes as f64 / ours as f64) } else { String::new() };
        let empty = String::new();
        table.row(&[
            label.to_string(),
            side.to_string(),
            empty.clone(),
            empty,
            bytes.to_string(),
            ratio,
        ]);
    }
}
