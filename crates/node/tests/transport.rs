//! Both transports do what every transport has to.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use quorate::testkit::transport::{TransportUnderTest, check};
use quorate::transport::{
    Inbox, MemberKey, MemoryTransport, OutgoingSnapshot, PeerMessage, RejectReason, Transport,
    TransportError,
};
use quorate::{MemberId, MemberInfo, MemoryNetwork, TcpConfig, TcpTransport};

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
        TransportUnderTest { transport: Box::new(transport), info }
    })
    .await
    .unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(passed.checks.len(), CHECKS);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_passes_the_suite() {
    let network = MemoryNetwork::new();
    let passed = check(|| async {
        TransportUnderTest { transport: Box::new(network.transport()), info: MemberInfo::default() }
    })
    .await
    .unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(passed.checks.len(), CHECKS);
}

/// What a transport must not do.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Reorders,
    Alters,
    Forges,
    LosesSnapshots,
}

struct Faulty(MemoryTransport, Fault);

impl Transport for Faulty {
    fn start(&self, inbox: Inbox) -> Result<(), TransportError> {
        self.0.start(inbox)
    }

    fn add_member(&self, key: MemberKey, incarnation: u64) {
        self.0.add_member(key, incarnation);
    }

    fn remove_member(&self, key: MemberKey) {
        self.0.remove_member(key);
    }

    fn set_peers(&self, key: MemberKey, peers: Vec<(MemberId, MemberInfo)>) {
        self.0.set_peers(key, peers);
    }

    fn send(&self, key: MemberKey, mut messages: Vec<PeerMessage>) {
        match self.1 {
            Fault::Reorders => messages.reverse(),
            Fault::LosesSnapshots => {}
            Fault::Alters | Fault::Forges => {
                for message in &mut messages {
                    let PeerMessage::Raft(envelope) = message else { continue };
                    match self.1 {
                        Fault::Alters => envelope.joined_at ^= 1,
                        _ => envelope.from = MemberId(9),
                    }
                }
            }
        }
        self.0.send(key, messages);
    }

    fn send_snapshot(&self, key: MemberKey, snapshot: OutgoingSnapshot) {
        match self.1 {
            Fault::LosesSnapshots => drop(snapshot),
            _ => self.0.send_snapshot(key, snapshot),
        }
    }

    fn reject(&self, key: MemberKey, from: MemberId, why: RejectReason) {
        self.0.reject(key, from, why);
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.0.counts()
    }

    fn stop(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        self.0.stop()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_suite_notices_what_is_wrong() {
    for (fault, noticed_by) in [
        (Fault::Reorders, "messages_to_a_peer_keep_their_order"),
        (Fault::Alters, "messages_arrive_unaltered"),
        (Fault::Forges, "messages_arrive_unaltered"),
        (Fault::LosesSnapshots, "snapshots_arrive_complete"),
    ] {
        let network = MemoryNetwork::new();
        let failure = check(|| async {
            let transport = Box::new(Faulty(network.transport(), fault));
            TransportUnderTest { transport, info: MemberInfo::default() }
        })
        .await
        .unwrap_err();
        assert_eq!(failure.check, noticed_by, "{fault:?}: {failure}");
    }
}
