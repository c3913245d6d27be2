//! Both transports do what every transport has to.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use quorate::testkit::transport::{Made, check};
use quorate::{MemoryNetwork, TcpConfig, TcpTransport};
use quorate_core::MemberInfo;

const CHECKS: usize = 11;

#[tokio::test(flavor = "multi_thread")]
async fn tcp_passes_the_suite() {
    let passed = check(|| async {
        let mut config = TcpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        // So that the queues fill before the machine's memory does.
        config.queue_bytes_max = 16 << 20;
        config.reconnect_min = Duration::from_millis(5);
        let transport = TcpTransport::bind(config).await.unwrap();
        let info =
            MemberInfo { info: transport.advertised().to_owned().into(), ..MemberInfo::default() };
        Made { transport: Box::new(transport), info }
    })
    .await
    .unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(passed.checks.len(), CHECKS);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_passes_the_suite() {
    let network = MemoryNetwork::new();
    let passed = check(|| async {
        Made { transport: Box::new(network.transport()), info: MemberInfo::default() }
    })
    .await
    .unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(passed.checks.len(), CHECKS);
}
