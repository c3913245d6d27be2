// The overview as the views use it. In JSON, fields that are zero or empty are left out.
const ROLES = {
  VOTING_ROLE_VOTER: "voter", VOTING_ROLE_INCOMING_VOTER: "incoming voter",
  VOTING_ROLE_OUTGOING_VOTER: "outgoing voter", VOTING_ROLE_LEARNER: "learner",
  VOTING_ROLE_EXPECTED: "expected",
};

export const hex = (id) => BigInt(id || 0).toString(16).padStart(16, "0");
export const entryText = (entry) => (entry ? `${entry.term || 0}.${entry.index || 0}` : "0.0");

export function memberNames(membership, known = new Map()) {
  for (const member of membership?.members || []) {
    if (member.name || !known.has(member.id)) known.set(member.id, member.name || hex(member.id));
  }
  return known;
}

export class Model {
  constructor() {
    this.names = new Map();
    this.timeline = [];
  }

  // Takes the next overview of the feed.
  update(overview) {
    const last = this.timeline.length ? Number(this.timeline[this.timeline.length - 1].number) : 0;
    const fresh = (overview.timeline || []).filter((entry) => Number(entry.number) > last);
    this.timeline = this.timeline.concat(fresh).slice(-512);
    for (const entry of fresh) memberNames(entry.membership, this.names);
    const status = overview.status || {};
    memberNames(status.membership, this.names);
    const membership = status.membership || {};
    const own = overview.header?.member_id || "0";
    this.overview = overview;
    this.status = status;
    this.own = own;
    this.leader = status.header?.leader_id || overview.header?.leader_id || "0";
    this.term = status.header?.term || overview.header?.term || "0";
    this.cluster = hex(overview.header?.cluster_id);
    this.membership = membership;
    this.majorities = (membership.majorities || []).map((one) => ({
      voters: one.voters || [], quorum: one.quorum || 0,
    }));
    this.joint = this.majorities.length > 1;
    this.learners = membership.learners || [];
    this.goal = membership.goal;
    this.settled = Boolean(status.settled);
    this.tolerance = status.tolerance;
    this.now = Number(overview.unix_millis || 0);
    this.auth = Boolean(overview.auth_enabled);
    this.hasLeaderView = Boolean(status.view);
    this.members = (membership.members || []).map((member) => this.member(member));
    this.members.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
  }

  restart() {
    this.timeline = [];
  }

  name(id) {
    return this.names.get(id) || hex(id);
  }

  nameList(ids) {
    const names = (ids || []).map((id) => this.name(id));
    return names.sort((one, other) => one.localeCompare(other, "en", { numeric: true })).join(", ");
  }

  // Ids in texts of the server, as names.
  withNames(text) {
    return text.replace(/[0-9a-f]{16}/g, (id) => this.name(BigInt(`0x${id}`).toString()));
  }

  member(member) {
    const { id } = member;
    const report = (this.overview.reports || []).find((one) => one.member_id === id);
    const peer = (this.status.peers || []).find((one) => one.id === id);
    const view = this.status.view || {};
    const last = Number(this.status.member?.log?.last?.index || 0);
    const lag = peer ? Math.max(0, last - Number(peer.matched || 0)) : null;
    const state = this.stateOf(member, peer, view);
    const leaderReport = (this.overview.reports || []).find((one) => one.member_id === this.leader);
    const trips = id === this.leader ? [] : leaderReport?.round_trips || [];
    return {
      id, report, peer, lag, state,
      name: this.name(id),
      zone: member.zone || "",
      peerUrls: member.peer_urls || [],
      clientUrls: member.client_urls || [],
      voting: ROLES[member.voting_role] || "member",
      isLeader: id === this.leader,
      isSelf: id === this.own,
      roundTrip: trips.find((one) => one.member_id === id),
    };
  }

  // live: counts for quorums now; lagging: answers, and is behind; silent: does not answer;
  // expected: not a member yet; unknown: no leader says.
  stateOf(member, peer, view) {
    if (member.voting_role === "VOTING_ROLE_EXPECTED") return "expected";
    if (!this.status.view) return "unknown";
    if ((view.caught_up || []).includes(member.id)) return "live";
    if (member.id === this.leader || peer?.active) return "lagging";
    return "silent";
  }

  byName(name) {
    return this.members.find((member) => member.name === name);
  }
}

// What a goal changes, in words.
export function goalText(model, goal) {
  const from = [...(goal.from_voters || [])], to = goal.voters || [];
  const added = to.filter((id) => !from.includes(id));
  const removed = from.filter((id) => !to.includes(id) && !(goal.learners || []).includes(id));
  const fromLearners = goal.from_learners || [];
  const learners = (goal.learners || []).filter((id) => !fromLearners.includes(id));
  const without = fromLearners.filter((id) => !to.includes(id) && !(goal.learners || []).includes(id));
  const names = (ids) => model.nameList(ids);
  if (goal.cancels) return "Going back to the members before the cancelled change";
  if (added.length && removed.length) return `Replacing ${names(removed)} with ${names(added)}`;
  if (added.length) return `Adding ${names(added)} as ${added.length > 1 ? "voters" : "a voter"}`;
  if (removed.length) return `Removing ${names(removed)}`;
  if (learners.length) return `Adding ${names(learners)} as ${learners.length > 1 ? "learners" : "a learner"}`;
  if (without.length) return `Removing ${names(without)}`;
  return `Changing the members to ${names(to)}`;
}

export const STEPS = [
  ["add_learners", "Add as learner"], ["catch_up", "Catch up"], ["hand_over", "Hand over leadership"],
  ["move_votes", "Move votes"], ["leave", "Leave the joint"], ["settle", "Settle"],
  ["remove_learners", "Remove"],
];

export const stepKind = (step) => STEPS.map(([kind]) => kind).find((kind) => step && kind in step) || "";
