// What happened, newest first. The stages of a membership are one row.
import { h, byId, show, clock, duration } from "./dom.js";
import { entryText } from "./model.js";

const STAGES = [["proposed", "proposed"], ["committed", "committed"], ["active", "counts"], ["settled", "settled"]];
const MARKS = {
  leader: "★", role: "◇", transfer: "⇄", snapshot: "▣", connected: "●", disconnected: "○", stalled: "▲",
  identity: "▲", log_lost: "▲", goal_ended: "✓", refused: "✕", proposed: "➤",
};

function membershipText(model, membership) {
  const majorities = (membership?.majorities || []).map((one) => model.nameList(one.voters));
  const learners = membership?.learners || [];
  return majorities.join(" and ") + (learners.length ? ` · learners ${model.nameList(learners)}` : "");
}

// The entries as rows: one for each membership, and one for each other event.
function rowsOf(model) {
  const rows = [], memberships = new Map();
  let proposal = null;
  for (const entry of model.timeline) {
    const at = Number(entry.unix_millis);
    if (entry.kind === "proposed" || entry.kind === "step") {
      proposal = { at, text: entry.text };
      if (entry.kind === "proposed") rows.push({ at, kind: entry.kind, text: `requested: ${model.withNames(entry.text)}` });
    } else if (["committed", "active", "settled"].includes(entry.kind)) {
      const id = entryText(entry.entry);
      let row = memberships.get(id);
      if (!row) {
        row = { at, kind: "membership", id, stages: {}, text: membershipText(model, entry.membership) };
        // The entries of a moment may be in another order: it counts as soon as it is committed.
        if (entry.kind !== "settled" && proposal) row.stages.proposed = proposal.at;
        if (entry.kind !== "settled") proposal = null;
        memberships.set(id, row);
        rows.push(row);
      }
      row.stages[entry.kind] ??= at;
    } else if (entry.kind !== "role") {
      rows.push({ at, kind: entry.kind, text: eventText(model, entry) });
    }
  }
  return rows.sort((one, other) => other.at - one.at);
}

function eventText(model, entry) {
  const name = entry.member_id ? model.name(entry.member_id) : "";
  switch (entry.kind) {
    case "leader": return name ? `${name} leads term ${entry.term || 0}` : `no leader is known (term ${entry.term || 0})`;
    case "goal_ended": return `change ${entryText(entry.entry)} ended: ${entry.text}`;
    case "refused": return `refused: ${model.withNames(entry.text)}`;
    case "snapshot": return entry.text;
    default: return name ? `${name}: ${entry.text}` : model.withNames(entry.text);
  }
}

export function showTimeline(model) {
  const rows = rowsOf(model).slice(0, 120);
  byId("timeline-source").textContent = `As ${model.name(model.own)} saw it since it started.`;
  show("timeline-body", rows, () => rows.length
    ? h("ol", { class: "timeline" }, rows.map((row) => h("li", { class: row.kind },
      h("span", { class: "when" }, clock(row.at)),
      row.kind === "membership" ? membershipRow(row) : h("span", { class: "what" },
        h("span", { class: "mark", "aria-hidden": "true" }, MARKS[row.kind] || "•"), " ", row.text))))
    : h("p", { class: "muted" }, "Nothing has happened yet."));
}

function membershipRow(row) {
  let before = null;
  return h("div", { class: "what" },
    h("p", {}, h("span", { class: "mark", "aria-hidden": "true" }, "◎"), " Membership ", h("strong", {}, row.id), ` · ${row.text}`),
    h("ol", { class: "stages" }, STAGES.map(([stage, label]) => {
      const at = row.stages[stage];
      const later = at && before !== null ? `+${duration(at - before)}` : "";
      if (at) before = at;
      return h("li", { class: at ? "done" : "open", title: at ? clock(at) : "" },
        h("span", { "aria-hidden": "true" }, at ? "●" : "○"), ` ${label}`, !at && h("span", { class: "hidden-text" }, " not seen"),
        later && h("span", { class: "muted" }, ` ${later}`));
    })));
}
