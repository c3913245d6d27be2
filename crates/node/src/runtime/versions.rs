//! The leader's work on the cluster version.
//!
//! While its own program supports a higher version than the cluster has, or a downgrade is in
//! progress, a leader asks all members which versions their programs support. It raises the
//! version when all of them have answered, and ends a downgrade when none supports more. In all
//! other clusters nothing is asked.

use quorate_core::{MemberId, Refusal};
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::member::Member;
use super::pending_replies::ReplyReceiver;
use super::side_messages::SideMessage;
use crate::cluster_version::{ClusterVersion, SupportedVersions, VersionRange};
use crate::outcome::{RequestOutcome, RequestRefused};

/// The rounds of questions of a leader.
pub(crate) struct VersionRounds {
    supported: VersionRange,
    /// The number of the current round.
    round: u64,
    ticks_left: u32,
    /// The replies in this round.
    replies: SupportedVersions,
    /// Downgrades that wait for the end of the round; none cancels one.
    downgrades: Vec<(Option<u32>, oneshot::Sender<RequestOutcome>)>,
    /// The members that kept the version from rising when this was last logged.
    waits_for: Vec<MemberId>,
}

impl VersionRounds {
    pub(crate) fn new(supported: VersionRange) -> Self {
        Self {
            supported,
            round: 0,
            ticks_left: 0,
            replies: SupportedVersions::default(),
            downgrades: Vec::new(),
            waits_for: Vec::new(),
        }
    }

    pub(crate) fn supported(&self) -> VersionRange {
        self.supported
    }
}

impl Member {
    pub(crate) fn on_version_tick(&mut self) {
        self.capture_changed_version();
        if self.driver.raft().leader() != Some(self.key.member) {
            self.refuse_downgrades();
            return;
        }
        let now = self.driver.cluster_version();
        let versions = &mut self.state.versions;
        let due = versions.supported.max > now.version
            || now.downgrading
            || !versions.downgrades.is_empty();
        versions.ticks_left = versions.ticks_left.saturating_sub(1);
        if due && versions.ticks_left == 0 {
            self.end_version_round();
            self.begin_version_round();
        }
    }

    fn begin_version_round(&mut self) {
        let election_ticks = self.driver.raft().config().election_ticks;
        let own = self.key.member;
        let versions = &mut self.state.versions;
        versions.round += 1;
        versions.ticks_left = election_ticks.max(1);
        versions.replies = SupportedVersions::default();
        versions.replies.insert(own, versions.supported);
        let request = SideMessage::VersionRequest(versions.round);
        for peer in self.version_members() {
            if peer != own {
                self.send_side_message(peer, &request);
            }
        }
        self.propose_next_version();
    }

    fn version_members(&self) -> Vec<MemberId> {
        self.driver.raft().membership().members().iter().collect()
    }

    pub(crate) fn on_version_reply(
        &mut self,
        from: MemberId,
        number: u64,
        supported: VersionRange,
    ) {
        let versions = &mut self.state.versions;
        let known = versions.replies.of(from).is_some();
        if number == versions.round && !known && self.version_members().contains(&from) {
            self.state.versions.replies.insert(from, supported);
            self.propose_next_version();
        }
    }

    /// Proposes a change when every member has answered. The last answer and the start of the
    /// round come here, so each round proposes at most once.
    fn propose_next_version(&mut self) {
        let (now, term) = (self.driver.cluster_version(), self.driver.raft().term());
        let members = self.version_members();
        let change = self.state.versions.replies.next_change(now, &members);
        if let Some(change) = change
            && self.state.versions.downgrades.is_empty()
        {
            info!(member = %self.key.member, from = %change.from, to = %change.to,
                "all members support it: changing the cluster version");
            // Without a result it is proposed again in the next round.
            let _ = self.driver.propose_version(term, change);
        }
    }

    /// What waits for the answers of a round ends with it, whether or not all have come.
    fn end_version_round(&mut self) {
        let (now, term) = (self.driver.cluster_version(), self.driver.raft().term());
        self.log_missing_support(now);
        for (target, reply) in std::mem::take(&mut self.state.versions.downgrades) {
            match self.state.versions.replies.downgrade(now, target) {
                Ok(change) => {
                    info!(member = %self.key.member, from = %change.from, to = %change.to,
                        "an operator changes the cluster version");
                    let token = self.driver.propose_version(term, change);
                    self.state.waiting.insert(token, ReplyReceiver::Single(reply));
                }
                Err(refusal) => {
                    let _ = reply.send(Err(RequestRefused::Downgrade(refusal).into()));
                }
            }
        }
    }

    /// Says once which members keep the version from rising.
    fn log_missing_support(&mut self, now: ClusterVersion) {
        let own = self.key.member;
        let members = self.version_members();
        let versions = &mut self.state.versions;
        let supports = |member: &MemberId| {
            versions.replies.of(*member).is_some_and(|supported| supported.max > now.version)
        };
        let missing: Vec<MemberId> = members.into_iter().filter(|id| !supports(id)).collect();
        // Before the first round nothing is known.
        let waits = versions.round > 0 && versions.supported.max > now.version && !now.downgrading;
        if !waits || missing == versions.waits_for {
            return;
        }
        if !missing.is_empty() {
            let waits_for: Vec<String> = missing.iter().map(ToString::to_string).collect();
            info!(member = %own, cluster_version = %now, waits_for = waits_for.join(" "),
                "the cluster version rises when these members support a higher one");
        }
        versions.waits_for = missing;
    }

    pub(crate) fn on_downgrade(
        &mut self,
        target: Option<u32>,
        reply: oneshot::Sender<RequestOutcome>,
    ) {
        let leader = self.driver.raft().leader();
        if leader != Some(self.key.member) {
            let refused = RequestRefused::ByLeader(Refusal::NotLeader { leader });
            let _ = reply.send(Err(refused.into()));
            return;
        }
        let first = self.state.versions.downgrades.is_empty();
        self.state.versions.downgrades.push((target, reply));
        if first {
            // A new round: answers of an earlier one may be from other programs.
            self.begin_version_round();
        }
    }

    fn refuse_downgrades(&mut self) {
        let leader = self.driver.raft().leader();
        for (_, reply) in std::mem::take(&mut self.state.versions.downgrades) {
            let refused = RequestRefused::ByLeader(Refusal::NotLeader { leader });
            let _ = reply.send(Err(refused.into()));
        }
    }

    /// A program that supports only the new version cannot run the log before it: a snapshot
    /// replaces that part.
    fn capture_changed_version(&mut self) {
        if !self.driver.is_version_captured() {
            self.driver.capture();
        }
    }

    /// Tells the handles the cluster version.
    pub(crate) fn publish_version(&mut self) {
        let now = self.driver.cluster_version();
        let changed = self.shared.cluster_version.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
        if changed {
            if now.downgrading {
                warn!(member = %self.key.member, cluster_version = %now, "cluster version changed");
            } else {
                info!(member = %self.key.member, cluster_version = %now, "cluster version changed");
            }
        }
    }
}
