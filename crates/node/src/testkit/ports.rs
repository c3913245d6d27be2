//! Ports for servers that tests and local clusters start on this machine.

use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that operating systems assign to outgoing connections (from 32768 on Linux, from
/// 49152 elsewhere). A port that the system assigned and that was closed again, to be bound later, is
/// sometimes assigned to an outgoing connection in between.
const RANGE: Range<u16> = 10_240..32_000;

/// Returns different ports of 127.0.0.1 on which nothing listens. A process gets each port once; other
/// processes begin their search elsewhere. `None` if the range is exhausted.
pub fn free_ports(count: usize) -> Option<Vec<u16>> {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let length = u32::from(RANGE.end - RANGE.start);
    // A multiplier that is coprime to the length: neighbouring process ids begin far from each other.
    let first = std::process::id().wrapping_mul(2_654_435_761) % length;
    let mut ports = Vec::with_capacity(count);
    while ports.len() < count {
        let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
        if taken >= length {
            return None;
        }
        let offset = u16::try_from((first + taken) % length).unwrap_or(0);
        let port = RANGE.start + offset;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            ports.push(port);
        }
    }
    Some(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_different_and_outside_of_the_range_of_outgoing_connections() {
        let mut ports = free_ports(40).unwrap();
        ports.extend(free_ports(40).unwrap());
        assert!(ports.iter().all(|port| RANGE.contains(port)));
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 80);
    }

    #[test]
    fn a_port_in_use_is_skipped() {
        let next = free_ports(1).unwrap()[0] + 1;
        let held: Vec<_> = (next..next + 20)
            .filter_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
            .map(|listener| (listener.local_addr().unwrap().port(), listener))
            .collect();
        let found = free_ports(5).unwrap();
        assert!(found.iter().all(|port| held.iter().all(|(taken, _)| taken != port)));
    }
}
