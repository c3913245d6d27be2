//! Where the leader may be found while members come and go: the one that was asked first may
//! be the one that leaves.

use std::time::Duration;

use quorate_proto::quorate::v1 as wire;

use crate::client::{Connection, leader_of, open};

/// One who is gone must not hold up the search for the others.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct Whereabouts {
    asked: Connection,
    /// Where clients find the members, as far as it was said.
    known: Vec<String>,
}

impl Whereabouts {
    pub(crate) fn new(asked: &Connection) -> Self {
        Self { asked: asked.clone(), known: Vec::new() }
    }

    /// Remembers where the members are now, and who was asked before.
    pub(crate) fn learn(&mut self, membership: Option<&wire::MembershipRecord>) {
        let Some(membership) = membership else { return };
        let urls = membership.members.iter().flat_map(|member| member.client_urls.clone());
        let urls: Vec<String> = urls.collect();
        if !urls.is_empty() {
            self.known = urls;
        }
    }

    /// Whoever leads, else whoever answers, else who was asked first.
    pub(crate) async fn leader(&mut self) -> Connection {
        if self.answers().await {
            return leader_of(&self.asked).await;
        }
        for url in &self.known {
            let Ok(other) = open(url, DIAL_TIMEOUT, self.asked.request_timeout).await else {
                continue;
            };
            let led = other.status().await.is_ok_and(|status| status.leader != 0);
            if led {
                self.asked = other;
                return leader_of(&self.asked).await;
            }
        }
        self.asked.clone()
    }

    async fn answers(&self) -> bool {
        self.asked.status().await.is_ok_and(|status| status.leader != 0)
    }
}
