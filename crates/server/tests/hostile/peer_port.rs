//! Strangers at the peer port. The connection is closed, and nothing else happens.

use std::net::SocketAddr;

use crate::{Report, exchange};

pub(crate) const CASES: usize = 12;

fn table() -> [(&'static str, Vec<u8>); CASES] {
    [
        ("silence", Vec::new()),
        ("one byte", vec![0]),
        ("zeros", vec![0; 4096]),
        ("ones", vec![0xff; 4096]),
        ("HTTP", b"GET /raft HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec()),
        ("TLS", [&[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 500]].concat()),
        ("a frame of 4 GiB", [&u32::MAX.to_le_bytes()[..], &[1; 100]].concat()),
        ("a frame of 4 GiB in the other byte order", vec![0x80, 0, 0, 0, 1, 2, 3]),
        ("a frame of nothing", vec![0; 8]),
        ("text", b"hello\r\n".repeat(1000)),
        ("a large stream", vec![0x55; 8 << 20]),
    ]
}

pub(crate) async fn run(address: SocketAddr, report: &mut Report) {
    let cases = table()
        .map(|(name, bytes)| (name, tokio::spawn(async move { exchange(address, &bytes).await })));
    for (name, case) in cases {
        report.case(name, case.await.unwrap().is_some(), "the connection stays open");
    }
}
