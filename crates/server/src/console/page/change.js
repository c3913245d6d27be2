// The change under way, and the dialogs that plan and make changes.
import { h, byId, show, duration, counted } from "./dom.js";
import { STEPS, stepKind, goalText, entryText } from "./model.js";

export function openDialog(title, ...content) {
  const dialog = byId("dialog");
  if (dialog.open) dialog.close();
  dialog.replaceChildren(
    h("div", { class: "head" }, h("h2", { id: "dialog-title" }, title),
      h("button", { type: "button", class: "quiet", "aria-label": "Close", onclick: () => dialog.close() }, "✕")),
    ...content);
  dialog.showModal();
  (dialog.querySelector("[data-first]") || dialog.querySelector("input:not([type=hidden]), button.primary"))?.focus();
  return dialog;
}

export const closeDialog = () => byId("dialog").close();

// The steps that a goal takes, as far as they can be told from its members.
function stepsOf(model) {
  const { goal } = model;
  const from = goal.from_voters || [], to = goal.voters || [];
  const all = [...from, ...(goal.from_learners || [])];
  const newcomers = [...to, ...(goal.learners || [])].filter((id) => !all.includes(id));
  const leaving = from.filter((id) => !to.includes(id));
  const gone = all.filter((id) => !to.includes(id) && !(goal.learners || []).includes(id));
  const joining = to.filter((id) => !from.includes(id));
  const now = stepKind(model.status.progress?.step);
  const needed = {
    add_learners: newcomers.length > 0, catch_up: joining.length > 0,
    hand_over: leaving.includes(model.leader), move_votes: leaving.length + joining.length > 0,
    leave: leaving.length + joining.length > 1, settle: leaving.length + joining.length > 0, remove_learners: gone.length > 0,
  };
  return STEPS.filter(([kind]) => needed[kind] || kind === now);
}

export function showChange(state) {
  const { model } = state;
  byId("change").hidden = !model.goal;
  if (!model.goal) {
    show("change-body", [], () => []);
    return;
  }
  const progress = model.status.progress;
  const steps = stepsOf(model);
  const now = stepKind(progress?.step);
  const position = STEPS.findIndex(([kind]) => kind === now);
  const reasons = [];
  for (const one of progress?.not_ready || []) reasons.push(`◌ ${model.name(one.member_id)}: ${one.text}`);
  for (const one of (progress?.behind || []).filter((member) =>
    Number(member.entries || 0) > 0 && !(progress.not_ready || []).some((other) => other.member_id === member.member_id))) {
    reasons.push(`◐ ${model.name(one.member_id)} is ${counted(one.entries || 0, "entry", "entries")} behind`);
  }
  if (progress?.held_up) reasons.push(`▲ ${model.withNames(progress.held_up.text || "")}`);
  const awaited = model.nameList(progress?.awaited);
  const since = progress ? duration(Math.round(Number(progress.since_millis || 0) / 1000) * 1000) : "";
  const learners = model.nameList(model.goal.learners);
  const target = model.nameList(model.goal.voters) + (learners && `, and without a vote ${learners}`);
  const text = goalText(model, model.goal);
  const data = [model.goal, now, since, reasons, awaited, steps, state.canWrite, text, target];
  show("change-body", data, () => [
    h("div", { class: "head" },
      h("h2", { id: "h-change" }, h("span", { class: "spinner", "aria-hidden": "true" }, "◐"), " Change under way: ", text),
      h("button", {
        type: "button", class: "danger", "data-key": "cancel", disabled: !state.canWrite || Boolean(model.goal.cancels),
        onclick: () => cancelDialog(state, text),
      }, "Cancel the change…")),
    h("p", {}, "Members at the end: ", h("strong", {}, target)),
    h("ol", { class: "steps" }, steps.map(([kind, label]) => {
      const place = STEPS.findIndex(([other]) => other === kind);
      const [mark, name] = place < position ? ["✓", "done"] : place === position ? ["◐", "now"] : ["○", "to come"];
      return h("li", { class: name.replace(" ", "-"), "aria-current": name === "now" ? "step" : null },
        h("span", { class: "mark", "aria-hidden": "true" }, mark), h("span", {}, label), h("span", { class: "muted small" }, name));
    })),
    progress
      ? h("div", { class: "waits", role: "status" },
        h("p", {}, h("strong", {}, model.withNames(progress.step?.text || "")), since && `, for ${since}`,
          awaited && ` · waiting for ${awaited}`),
        reasons.length > 0 && h("ul", {}, reasons.map((reason) => h("li", {}, reason))))
      : h("p", { class: "muted" }, "Only a leader knows the step; this page hears from none."),
  ]);
}

// A form whose button works once the name has been typed.
function confirmForm(word, label, run) {
  const failed = h("p", { class: "error", role: "alert" });
  const button = h("button", { type: "submit", class: "danger", disabled: true }, label);
  const input = h("input", {
    id: "confirm", autocomplete: "off", spellcheck: "false", "data-first": true,
    oninput: () => { button.disabled = input.value !== word; },
  });
  return h("form", {
    class: "confirm",
    onsubmit: async (event) => {
      event.preventDefault();
      if (input.value !== word) return;
      button.disabled = true;
      try {
        await run();
        closeDialog();
      } catch (error) {
        failed.textContent = error.message;
        button.disabled = false;
      }
    },
  }, h("label", { for: "confirm" }, "Type ", h("code", {}, word), " to confirm"), input, failed,
  h("div", { class: "buttons" }, button, h("button", { type: "button", onclick: closeDialog }, "Back")));
}

function cancelDialog(state, text) {
  // The goal, not the membership: the leader may take a step while the dialog is open.
  const expected = state.model.goal.id;
  openDialog("Cancel the change",
    h("p", {}, `${text}. The members go back to what they were before, in the same safe steps.`),
    confirmForm("cancel", "Cancel the change", () => state.call("/quorate/v1/membership/cancel", { expected })));
}

export function transferDialog(state, member) {
  openDialog(`Make ${member.name} the leader`,
    h("p", {}, `${state.model.name(state.model.leader)} hands over to ${member.name}. Requests wait for some milliseconds.`),
    confirmForm(member.name, "Transfer leadership", () =>
      state.call("/quorate/v1/leadership/transfer", { target_id: member.id })));
}

const TITLES = { add: "Add a member", replace: "Replace", remove: "Remove", promote: "Promote" };

// The members to end with: the present target with this change.
function targetOf(model, kind, member, fresh) {
  const base = model.goal || { voters: model.majorities[0]?.voters || [], learners: model.learners };
  let voters = (base.voters || []).map((id) => ({ id })), learners = (base.learners || []).map((id) => ({ id }));
  const without = (list) => list.filter((one) => one.id !== member.id);
  if (kind === "remove" || kind === "replace") [voters, learners] = [without(voters), without(learners)];
  if (kind === "promote") [voters, learners] = [[...voters, { id: member.id }], without(learners)];
  if (kind === "add" || kind === "replace") {
    const newcomer = { new: { name: fresh.name, peer_urls: [fresh.url], zone: fresh.zone } };
    if (fresh.learner || (kind === "replace" && member.voting === "learner")) learners = [...learners, newcomer];
    else voters = [...voters, newcomer];
  }
  return { voters, learners };
}

export function changeDialog(state, kind, member) {
  const title = member ? `${TITLES[kind]} ${member.name}` : TITLES[kind];
  const needsNew = kind === "add" || kind === "replace";
  const field = (id, label, attributes) => [h("label", { for: id }, label), h("input", { id, autocomplete: "off", spellcheck: "false", ...attributes })];
  const failed = h("p", { class: "error", role: "alert" });
  const preview = h("div", {});
  const value = (id) => byId(id)?.value.trim() || "";
  const plan = async (event) => {
    event?.preventDefault();
    failed.textContent = "";
    const fresh = { name: value("new-name"), url: value("new-url"), zone: value("new-zone"), learner: Boolean(byId("new-learner")?.checked) };
    const target = targetOf(state.model, kind, member, fresh);
    try {
      const reply = await state.call("/quorate/v1/membership/plan", { target });
      const word = member ? member.name : fresh.name;
      preview.replaceChildren(planTable(state.model, reply), h("p", { class: "muted small" },
        needsNew ? `After this, start ${fresh.name} with --initial-cluster-state existing. The leader waits for it.` : "",
        ` Nothing is changed if the members have changed meanwhile (membership ${entryText(reply.from?.id)}).`),
      confirmForm(word, title, () => state.call("/quorate/v1/membership/setgoal", { target, expected: reply.from?.id })));
      byId("confirm").focus();
    } catch (error) {
      preview.replaceChildren();
      failed.textContent = state.model.withNames(error.message);
    }
  };
  openDialog(title,
    h("form", { onsubmit: plan },
      needsNew && field("new-name", "Name of the new member", { required: true, "data-first": true }),
      needsNew && field("new-url", "Peer URL", { required: true, type: "text", inputmode: "url", pattern: "https?:/{2}.+", title: "a URL such as http:" + "/" + "/10.0.0.4:2380" }),
      needsNew && field("new-zone", "Zone (optional)", {}),
      kind === "add" && h("p", { class: "check" }, h("input", { id: "new-learner", type: "checkbox" }), h("label", { for: "new-learner" }, "Only a learner: receives the log and does not vote")),
      failed,
      h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Preview the plan"))),
    preview);
  if (!needsNew) plan();
}

// Every step with the members after it, and what it could not tolerate.
function planTable(model, reply) {
  const names = new Map(model.names);
  for (const one of reply.newcomers || []) names.set(one.id, one.name);
  const name = (id) => names.get(id) || model.name(id);
  const list = (ids) => (ids || []).map(name).join(", ");
  const withNames = (text) => text.replace(/[0-9a-f]{16}/g, (id) => name(BigInt(`0x${id}`).toString()));
  const losses = (sets) => (sets || []).filter((set) => (set.ids || []).length === 1).map((set) => name(set.ids[0]));
  const steps = reply.steps || [];
  if (steps.length === 0) return h("p", {}, "The members are already as requested.");
  return h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "The plan, scrollable" }, h("table", { class: "plan" },
    h("caption", {}, `The plan: ${counted(steps.length, "step", "steps")}`),
    h("thead", {}, h("tr", {}, ["No.", "Step", "Voters after", "Loss that would stop it"].map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, steps.map((one, number) => {
      const majorities = one.membership?.majorities || [];
      const single = [...new Set([...losses(one.stops_commits), ...losses(one.stops_elections)])];
      return h("tr", {}, h("td", {}, number + 1), h("th", { scope: "row" }, withNames(one.step?.text || "")),
        h("td", {}, majorities.map((majority) => list(majority.voters)).join(" and "),
          (one.membership?.learners || []).length > 0 && h("span", { class: "muted" }, ` · learners ${list(one.membership.learners)}`)),
        h("td", {}, single.length ? `✕ ${single.join(", ")}` : "✓ no single loss"));
    }))));
}
