// What the cluster tolerates, its majorities as a drawing, alarms and quota, and its leaders.
import { h, s, show, counted, bytes, duration, clock } from "./dom.js";
import { entryText, hex } from "./model.js";

export function showTolerance(model) {
  const { tolerance } = model;
  const losses = (tolerance?.stops_commits || []).map((one) => one.ids || []);
  const data = [tolerance, model.joint, model.settled, losses.map((ids) => model.nameList(ids)), model.hasLeaderView];
  show("tolerance-body", data, () => {
    if (!tolerance) {
      return verdict("bad", "✕", "?", "No leader is known",
        "Without a leader nobody knows how many failures are tolerated. Writes wait.");
    }
    const failures = Number(tolerance.failures || 0);
    const [kind, mark, text] = !tolerance.has_quorum
      ? ["bad", "✕", "No quorum: the cluster accepts no writes"]
      : failures === 0
        ? ["warn", "!", "No further failure is tolerated"]
        : ["good", "✓", `${counted(failures, "more member", "more members")} may fail`];
    const single = losses.filter((ids) => ids.length === 1).flat();
    const pairs = losses.filter((ids) => ids.length > 1);
    return [
      verdict(kind, mark, tolerance.has_quorum ? String(failures) : "–", text,
        model.joint ? "Two majorities count while votes move: each needs its own quorum." : ""),
      single.length > 0 && h("div", { class: "losses" },
        h("h3", {}, "The loss of one of these would stop writes"),
        h("ul", { class: "chips" }, single.map((id) => h("li", { class: "chip bad" }, `✕ ${model.name(id)}`)))),
      pairs.length > 0 && h("div", { class: "losses" },
        h("h3", {}, "The loss of two together would stop writes"),
        h("ul", { class: "chips" }, pairs.slice(0, 12).map((ids) =>
          h("li", { class: "chip" }, ids.map((id) => model.name(id)).sort().join(" + "))),
        pairs.length > 12 && h("li", { class: "chip" }, `and ${pairs.length - 12} more pairs`))),
      tolerance.blocking_zone && h("p", { class: "error" },
        `▲ The failure of zone ${tolerance.blocking_zone} alone would stop the cluster.`),
    ];
  });
}

function verdict(kind, mark, number, text, more) {
  return h("div", { class: `verdict ${kind}` },
    h("p", { class: "number", "aria-hidden": "true" }, number),
    h("div", {},
      h("p", { class: "sentence", role: "status" }, h("span", { class: "mark", "aria-hidden": "true" }, mark), " ", text),
      more && h("p", { class: "muted" }, more)));
}

const STATES = {
  live: ["●", "live"], lagging: ["◐", "behind"], silent: ["○", "silent"],
  expected: ["◌", "not started"], unknown: ["?", "unknown"],
};
export const stateText = (state) => STATES[state] || STATES.unknown;

// One column for each member, one row for each majority; a member of both is joined by a line.
export function showQuorums(model) {
  const counts = model.tolerance?.counts || [];
  const columns = model.members.map(({ id, name, state, isLeader }) => ({ id, name, state, isLeader }));
  show("quorums-body", [columns, model.majorities, model.learners, counts, model.settled, entryText(model.membership.id)], () => {
    const rows = model.majorities.map((one, number) => ({
      label: !model.joint ? "Voters" : number === 0 ? "Incoming" : "Outgoing",
      ids: one.voters, quorum: one.quorum, live: counts[number]?.live ?? 0, kind: number,
    }));
    const rest = columns.filter(({ id }) => !rows.some((row) => row.ids.includes(id))).map(({ id }) => id);
    if (rest.length) rows.push({ label: "No vote", ids: rest, kind: "none" });
    const left = 138, width = 92, height = 74, top = 30;
    const total = left + columns.length * width + 8;
    const y = (row) => top + row * height + 4;
    const x = (column) => left + column * width + width / 2;
    const sentence = rows.filter((row) => row.quorum).map((row) =>
      `${row.label}: ${model.nameList(row.ids)}; ${row.quorum} of ${row.ids.length} needed, ${row.live} live`).join(". ");
    const drawing = s("svg", {
      viewBox: `0 0 ${total} ${top + rows.length * height + 6}`, role: "img", "aria-label": sentence, class: "quorums",
    },
    columns.map((column, number) => s("text", { x: x(number), y: 18, class: "name" }, column.name)),
    rows.map((row, number) => [
      s("rect", { x: 2, y: y(number), width: total - 4, height: height - 10, rx: 12, class: `band band-${row.kind}` }),
      s("text", { x: 16, y: y(number) + 26, class: "label" }, row.label),
      s("text", { x: 16, y: y(number) + 45, class: "detail" },
        row.quorum ? `needs ${row.quorum} of ${row.ids.length}, ${row.live} live` : "receive the log"),
    ]),
    columns.map((column, position) => {
      const inside = rows.map((row, number) => (row.ids.includes(column.id) ? number : -1)).filter((n) => n >= 0);
      const centre = (row) => y(row) + (height - 10) / 2;
      return [
        inside.length > 1 && s("line", {
          x1: x(position), x2: x(position), y1: centre(inside[0]) + 18, y2: centre(inside[inside.length - 1]) - 18, class: "joined",
        }),
        inside.map((row) => seat(x(position), centre(row), column, rows[row].kind === "none")),
      ];
    }));
    return [
      drawing,
      h("p", { class: "muted small legend" }, "● live  ◐ behind  ○ silent  ◌ not started  ★ leader  ■ no vote"),
      h("p", { class: "small" }, `Membership ${entryText(model.membership.id)}: `,
        model.settled ? "✓ settled, its members need no others" : "◐ not settled yet"),
    ];
  });
}

function seat(x, y, column, isLearner) {
  const shape = isLearner
    ? s("rect", { x: x - 17, y: y - 17, width: 34, height: 34, rx: 6, class: `seat ${column.state}` })
    : s("circle", { cx: x, cy: y, r: 19, class: `seat ${column.state}` });
  return [shape, s("text", { x, y: y + 6, class: `glyph ${column.state}` }, column.isLeader ? "★" : stateText(column.state)[0])];
}

export function showHealth(model) {
  const reports = model.overview.reports || [];
  const alarms = new Map();
  for (const report of reports) {
    for (const alarm of report.alarms || []) alarms.set(`${alarm.kind} ${alarm.member_id}`, alarm);
  }
  const used = Math.max(0, ...reports.map((one) => Number(one.data_bytes_in_use || 0)));
  const quota = Math.max(0, ...reports.map((one) => Number(one.quota_bytes || 0)));
  const backup = reports.reduce((best, one) =>
    (Number(one.backup_unix_millis || 0) > best.at ? { at: Number(one.backup_unix_millis), by: one.member_id } : best), { at: 0, by: "0" });
  const age = backup.at ? duration(Math.round((model.now - backup.at) / 60000) * 60000) : "";
  const limited = quota > 0 && quota < 2 ** 62;
  const share = limited ? Math.min(1, used / quota) : 0;
  const stalled = reports.filter((one) => one.stalled).map((one) => [model.name(one.member_id), one.stalled]);
  const open = model.status.member?.plaintext_listeners || [];
  show("health-body", [[...alarms.keys()], used, quota, backup.at, age, stalled, open], () => [
    h("dl", { class: "facts" },
      h("dt", {}, "Alarms"),
      h("dd", {}, alarms.size === 0 ? "✓ none" : h("ul", { class: "chips" }, [...alarms.values()].map((alarm) =>
        h("li", { class: "chip bad" }, `▲ ${alarm.kind} ${model.name(alarm.member_id)}`)))),
      h("dt", {}, "Data"),
      h("dd", {}, limited ? `${bytes(used)} of ${bytes(quota)} (${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %)` : `${bytes(used)}, no limit`,
        limited && h("meter", { min: 0, max: 1, low: 0.7, high: 0.9, optimum: 0.2, value: share, "aria-label": "Share of the quota in use" })),
      h("dt", {}, "Last backup"),
      h("dd", {}, backup.at ? `${age} ago, from ${model.name(backup.by)}` : "! none since the members started (quorate snapshot save)"),
      stalled.length > 0 && [h("dt", {}, "Stalled"), h("dd", { class: "error" }, stalled.map(([name, text]) => `▲ ${name}: ${text}`).join("; "))],
      open.length > 0 && [h("dt", {}, "Without TLS"), h("dd", {}, `! ${open.join(", ")}`)]),
  ]);
}

export function showLeaders(state) {
  const { model } = state;
  const entries = model.timeline.filter((entry) => entry.kind === "leader");
  const rows = entries.map((entry, number) => ({
    term: entry.term || "0", id: entry.member_id || "0", at: Number(entry.unix_millis),
    until: entries[number + 1] ? Number(entries[number + 1].unix_millis) : null,
  })).reverse().slice(0, 12);
  const leader = model.members.find((member) => member.isLeader);
  const data = [rows, leader?.name, rows.map((row) => model.name(row.id))];
  show("leaders-body", data, () => [
    h("p", {}, leader ? ["★ ", h("strong", {}, leader.name), ` leads term ${model.term}.`] : "✕ No leader is known.",
      " Make leader… in the table of members transfers the leadership."),
    h("ol", { class: "leaders", reversed: true }, rows.map((row) => h("li", {},
      h("span", { class: "when" }, clock(row.at)), " ",
      row.id === "0" ? "✕ no leader" : `★ ${model.name(row.id)}`,
      h("span", { class: "muted" }, ` term ${row.term}`,
        row.until ? `, for ${duration(row.until - row.at)}` : ", now")))),
    rows.length === 0 && h("p", { class: "muted" }, `No election since this member started (${hex(model.own)}).`),
  ]);
}
