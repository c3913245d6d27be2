//! Finds the leader while members change: the member that was connected first may be the one
//! that is removed.

use std::time::Duration;

use quorate_proto::quorate::v1 as wire;

use crate::client::{Connection, leader_of};

/// An unreachable member must not delay the search for long.
const DIAL_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct LeaderFinder {
    connection: Connection,
    /// The client URLs of the newest membership that was received.
    client_urls: Vec<String>,
}

impl LeaderFinder {
    pub(crate) fn new(connection: &Connection) -> Self {
        Self { connection: connection.clone(), client_urls: Vec::new() }
    }

    /// Remembers the client URLs of these members.
    pub(crate) fn update(&mut self, membership: Option<&wire::MembershipRecord>) {
        let Some(membership) = membership else { return };
        let urls = membership.members.iter().flat_map(|member| member.client_urls.clone());
        let urls: Vec<String> = urls.collect();
        if !urls.is_empty() {
            self.client_urls = urls;
        }
    }

    /// A connection to the leader, else to a member that knows a leader, else the first one.
    pub(crate) async fn leader(&mut self) -> Connection {
        if knows_leader(&self.connection).await {
            return leader_of(&self.connection).await;
        }
        for url in &self.client_urls {
            let Ok(other) = self.connection.open_other(url, DIAL_TIMEOUT).await else { continue };
            if knows_leader(&other).await {
                self.connection = other;
                return leader_of(&self.connection).await;
            }
        }
        self.connection.clone()
    }
}

async fn knows_leader(connection: &Connection) -> bool {
    connection.status().await.is_ok_and(|status| status.leader != 0)
}
