// The table of members, with what can be done with each.
import { h, show, bytes, micros, duration } from "./dom.js";
import { hex } from "./model.js";
import { stateText } from "./cluster.js";
import { changeDialog, transferDialog } from "./change.js";

const FLOWS = { FLOW_SNAPSHOT: "receives a snapshot", FLOW_PROBE: "is being compared" };

function roleOf(member) {
  if (member.isLeader) return "★ leader";
  const voting = member.voting;
  if (voting === "learner") return "■ learner";
  if (voting === "expected") return "◌ expected";
  if (voting === "incoming voter") return "▲ incoming voter";
  if (voting === "outgoing voter") return "▼ outgoing voter";
  return "● voter";
}

function cells(model, member) {
  const { report } = member;
  const old = report && Number(report.age_millis || 0) > 5000;
  const free = report && Number(report.disk_bytes)
    ? `${bytes(report.disk_free_bytes)} free (${Math.round(100 * Number(report.disk_free_bytes || 0) / Number(report.disk_bytes))} %)` : "–";
  const trip = member.roundTrip;
  return {
    role: roleOf(member),
    state: `${stateText(member.state).join(" ")}${FLOWS[member.peer?.flow] && member.state !== "live" ? `, ${FLOWS[member.peer.flow]}` : ""}`,
    lag: member.lag === null ? "–" : member.lag.toLocaleString("en"),
    version: report?.version || "–",
    data: report ? bytes(report.data_bytes_in_use) : "–",
    disk: free,
    sync: report && Number(report.syncs || 0) ? micros(report.sync_p99_micros) : "–",
    trip: trip ? (trip.connected ? micros(trip.micros) : "○ not connected") : member.isLeader ? "" : "–",
    note: !report ? "no report" : old ? `last report ${duration(report.age_millis)} ago` : "",
  };
}

export function showMembers(state) {
  const { model } = state;
  const rows = model.members.map((member) => ({ member, cells: cells(model, member) }));
  const data = [rows.map((row) => [row.member.id, row.member.name, row.member.peerUrls, row.cells]), state.canWrite, model.own, model.leader, Boolean(model.goal)];
  const heads = ["Member", "Role", "State", "Lag", "Version", "Data", "Disk", "fsync p99", "Round trip", "Actions"];
  const title = {
    Lag: "Entries of the leader's log that the member has not saved",
    "fsync p99": "99 of 100 syncs of the log took at most this long, in the last minutes",
    "Round trip": "Between the leader and the member",
  };
  show("members-body", data, () => h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Members, scrollable" },
    h("table", {},
      h("thead", {}, h("tr", {}, heads.map((head) => h("th", { scope: "col", title: title[head] }, head)))),
      h("tbody", {}, rows.map(({ member, cells: shown }) => h("tr", { class: member.state },
        h("th", { scope: "row" }, h("span", { class: "name" }, member.name), member.isSelf && h("span", { class: "tag" }, "this page"),
          h("span", { class: "muted id" }, hex(member.id), member.zone && ` · ${member.zone}`)),
        h("td", { class: "number" }, shown.role),
        h("td", {}, h("span", { class: `state ${member.state}` }, shown.state), shown.note && h("span", { class: "muted note" }, shown.note)),
        h("td", { class: "number" }, shown.lag),
        h("td", {}, shown.version),
        h("td", { class: "number" }, shown.data),
        h("td", { class: "number" }, shown.disk),
        h("td", { class: "number" }, shown.sync),
        h("td", { class: "number" }, shown.trip),
        h("td", { class: "actions" }, actions(state, member))))))));
}

function actions(state, member) {
  const { model } = state;
  const button = (key, label, name, run) => h("button", {
    type: "button", class: "small", "data-key": `${key}-${member.id}`, "aria-label": name, disabled: !state.canWrite, onclick: run,
  }, label);
  const all = [];
  if (member.voting === "learner") {
    all.push(button("promote", "Promote…", `Promote ${member.name}`, () => changeDialog(state, "promote", member)));
  }
  if (member.voting === "voter" && !member.isLeader && model.hasLeaderView) {
    all.push(button("lead", "Make leader…", `Make leader: ${member.name}`, () => transferDialog(state, member)));
  }
  if (member.voting !== "expected") {
    all.push(button("replace", "Replace…", `Replace ${member.name}`, () => changeDialog(state, "replace", member)));
    all.push(button("remove", "Remove…", `Remove ${member.name}`, () => changeDialog(state, "remove", member)));
  }
  return all;
}
