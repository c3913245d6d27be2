// The page: two stages, each a story and a position in it. All that is shown comes from the
// program in playground.wasm; the page only draws it.
const TIME_LIMIT = 10000, RUN_INTERVAL = 500;
const byId = (id) => document.getElementById(id);

// --- The program -------------------------------------------------------------------------------

let worker, requests = new Map(), lastId = 0;

function ask(input) {
  worker ??= startWorker();
  const id = ++lastId;
  return new Promise((resolve) => {
    const timer = setTimeout(() => {
      worker.terminate();
      worker = undefined;
      finish(id, { error: { line: 0, why: "The story takes too long. Ask for fewer ticks." } });
    }, TIME_LIMIT);
    requests.set(id, { resolve, timer });
    worker.postMessage({ id, input });
  });
}

function startWorker() {
  const started = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  started.onmessage = (event) => finish(event.data.id, event.data.answer);
  started.onerror = (event) => {
    for (const id of requests.keys()) finish(id, { error: { line: 0, why: event.message } });
  };
  return started;
}

function finish(id, answer) {
  const request = requests.get(id);
  if (!request) return;
  requests.delete(id);
  clearTimeout(request.timer);
  request.resolve(answer);
}

// --- Small helpers -----------------------------------------------------------------------------

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick") made.addEventListener("click", value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function button(text, title, onclick, disabled = false) {
  return element("button", { type: "button", title, onclick, disabled: disabled ? "" : undefined }, text);
}

// Transcripts are not needed to play a story, and make it hard to read.
function withoutTranscripts(text) {
  let inside = false;
  const kept = text.split("\n").filter((line) => {
    if (line.startsWith("---")) inside = true;
    else if (line.trim() === "") inside = false;
    return !inside;
  });
  return kept.join("\n").trimEnd() + "\n";
}

function encode(value) {
  const bytes = new TextEncoder().encode(JSON.stringify(value));
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

function decode(text) {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  return JSON.parse(new TextDecoder().decode(Uint8Array.from(binary, (letter) => letter.charCodeAt(0))));
}

// --- A stage -----------------------------------------------------------------------------------

class Stage {
  constructor(name, changed) {
    this.name = name;
    this.changed = changed;
    this.original = this.text = "";
    this.position = 0;
    this.lines = [];
    this.root = byId("stage").content.firstElementChild.cloneNode(true);
    this.root.dataset.stage = name;
    const find = (selector) => this.root.querySelector(selector);
    this.parts = Object.fromEntries(["h2", ".verdict", "input", ".position", ".command code", ".lanes",
      ".messages", ".printed", "textarea", ".mistake"].map((selector) => [selector, find(selector)]));
    const editor = this.parts.textarea;
    editor.id = `story-${name}`;
    find("h3 label").htmlFor = editor.id;
    editor.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.setStory(editor.value, Infinity), 300);
    });
    this.parts.input.addEventListener("input", () => this.go(Number(this.parts.input.value)));
    const acts = { first: () => this.go(0), back: () => this.go(this.position - 1),
      step: () => this.go(this.position + 1), run: () => this.run(), export: () => this.export() };
    this.root.addEventListener("click", (event) => {
      const { act, command } = event.target.closest("button")?.dataset ?? {};
      if (act && act !== "run") this.stop();
      if (act) acts[act]();
      if (command) this.command(command);
    });
    this.root.addEventListener("keydown", (event) => {
      if (event.target.matches("textarea, select, input")) return;
      const keys = { ArrowLeft: "back", ArrowRight: "step", Home: "first" };
      const act = keys[event.key];
      if (act) { this.stop(); acts[act](); event.preventDefault(); }
    });
  }

  // The last step is shown unless another one is given.
  async setStory(text, position = Infinity, quiet = false) {
    this.text = text;
    const turn = (this.turn = (this.turn ?? 0) + 1);
    const answer = await ask(`play\n${text}`);
    if (turn !== this.turn) return;
    const { error } = answer;
    if (!error) this.lines = answer.lines;
    const failed = this.lines.at(-1)?.failure;
    this.mistake = error ? `line ${error.line}: ${error.why}`
      : failed ? `line ${this.lines.at(-1).number}: ${failed}` : "";
    if (this.parts.textarea.value !== text) this.parts.textarea.value = text;
    this.position = Math.max(0, Math.min(position, this.lines.length - 1));
    this.draw();
    if (!quiet) this.changed();
  }

  go(position) {
    this.position = Math.max(0, Math.min(position, this.lines.length - 1));
    this.draw();
    this.changed();
  }

  run() {
    if (this.running) return this.stop();
    if (this.position >= this.lines.length - 1) this.go(0);
    this.running = setInterval(() => {
      if (this.position >= this.lines.length - 1) return this.stop();
      this.go(this.position + 1);
    }, RUN_INTERVAL);
    this.draw();
  }

  stop() {
    clearInterval(this.running);
    this.running = undefined;
    this.draw();
  }

  // The command follows the present step; what came after it is dropped.
  command(command) {
    this.stop();
    const kept = this.text.split("\n").slice(0, this.lines[this.position]?.number ?? 0);
    this.setStory([...kept, command, ""].join("\n"), Infinity);
  }

  async export() {
    const answer = await ask(`export\n${this.text}`);
    if (answer.error) return this.say(`line ${answer.error.line}: ${answer.error.why}`);
    const url = URL.createObjectURL(new Blob([answer.story], { type: "text/plain" }));
    element("a", { href: url, download: `${this.file ?? "story"}.txt` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  say(text) { this.parts[".mistake"].textContent = text; }

  draw() {
    const line = this.lines[this.position], parts = this.parts;
    parts.h2.textContent = this.title ?? "";
    parts.input.max = Math.max(0, this.lines.length - 1);
    parts.input.value = this.position;
    parts[".position"].textContent = this.lines.length ? `${this.position + 1} of ${this.lines.length}` : "";
    this.root.querySelector("[data-act=run]").textContent = this.running ? "Pause" : "Run ▶▶";
    this.say(this.mistake ?? "");
    if (!line) return;
    parts[".command code"].textContent = line.text;
    parts[".printed"].textContent = line.printed.join("\n") || "nothing was printed";
    const leaders = line.cluster.members.filter((member) => member.role === "leader");
    parts[".verdict"].className = `verdict ${leaders.length ? "live" : "stuck"}`;
    parts[".verdict"].textContent = leaders.length
      ? `✓ ${leaders.map((leader) => `m${leader.id} leads term ${leader.term}`).join(", ")}`
      : "✕ no leader";
    parts[".lanes"].replaceChildren(...line.cluster.members.map((member) => this.lane(member)));
    const seen = new Set();
    parts[".messages"].replaceChildren(...line.cluster.messages.map((message) => this.message(message, seen)));
    if (!line.cluster.messages.length) parts[".messages"].append(element("li", {}, "none in flight"));
  }

  lane(member) {
    const name = `m${member.id}`, down = member.role === "down";
    const act = (text, title, command, disabled) => button(text, title, () => this.command(command), disabled);
    const facts = down ? `term ${member.term}`
      : `term ${member.term}, ${member.membership}, commit ${member.commit}, timeout ${member.elapsed} of ${member.timeout}`;
    return element("div", { class: "lane", role: "listitem", "data-member": name },
      element("div", { class: "who" },
        element("span", { class: "name" }, name),
        element("span", { class: `role ${member.role}` }, member.role),
        element("span", { class: "facts" }, facts)),
      element("div", { class: "log", tabindex: "0", "aria-label": `log of ${name}` },
        element("span", { class: "cell base" }, `after ${member.base}`), ...member.log.map(entry)),
      element("div", { class: "bar" },
        act("Campaign", `${name} campaigns`, `campaign ${name}`, down),
        act("Tick", `a tick for ${name}`, `tick ${name}`, down),
        act("Propose", `${name} proposes a command`, `propose ${name} x`, down),
        down ? act("Restart", `${name} starts from its disk`, `restart ${name}`)
          : act("Crash", `${name} crashes`, `crash ${name}`),
        act("Isolate", `all links of ${name} are cut`, `cut ${name} <-> *`)));
  }

  // Only the first of equal messages can be named in a command.
  message(message, seen) {
    const filter = `m${message.from} -> m${message.to} ${message.kind} first`, isFirst = !seen.has(filter);
    seen.add(filter);
    const act = (text, command) => button(text, command, () => this.command(command));
    const buttons = message.held || !isFirst ? []
      : [act("Deliver", `deliver ${filter}`), act("Drop", `drop ${filter}`), act("Delay", `hold ${filter}`)];
    return element("li", {}, message.text + (message.held ? " (delayed)" : ""), ...buttons);
  }
}

function entry(entry) {
  const mark = entry.settled ? " ✓" : entry.known ? " ●" : entry.committed ? " ○" : entry.saved ? "" : " …";
  const names = ["committed", "known", "settled"].filter((name) => entry[name]);
  if (!entry.saved) names.push("unsaved");
  const title = `entry ${entry.term}.${entry.index}: ${[...names, entry.saved ? "on disk" : ""].filter(Boolean).join(", ")}`;
  return element("span", { class: ["cell", ...names].join(" "), title }, entry.text + mark);
}

// --- The page ----------------------------------------------------------------------------------

const stages = [new Stage("off", save), new Stage("on", save)];
let presets = [], restoring = false, shows = 0;

function save() {
  if (restoring) return;
  const state = { preset: byId("preset").value };
  for (const stage of stages) {
    state[stage.name] = { at: stage.position, ...(stage.text === stage.original ? {} : { text: stage.text }) };
  }
  const hash = `#${encode(state)}`;
  if (hash !== location.hash) history.replaceState(null, "", hash);
}

async function show(id, state = {}) {
  const preset = presets.find((one) => one.id === id) ?? presets[0];
  byId("preset").value = preset.id;
  restoring = true;
  const turn = (shows += 1);
  byId("stages").setAttribute("aria-busy", "true");
  await Promise.all(stages.map((stage) => {
    const is = stage.name === "off" ? "without" : "with";
    stage.stop();
    stage.title = `${is === "with" ? "With" : "Without"} the condition: ${preset.condition}`;
    stage.file = `${preset.id}_${stage.name}`;
    stage.original = withoutTranscripts(preset[stage.name]);
    const { text, at } = state[stage.name] ?? {};
    return stage.setStory(text ?? stage.original, at ?? Infinity, true);
  }));
  // Another preset may have been chosen in the meantime.
  if (turn !== shows) return;
  restoring = false;
  byId("stages").setAttribute("aria-busy", "false");
  save();
}

function restore() {
  let state = {};
  try { state = decode(location.hash.slice(1)); } catch { /* a new visit, or a damaged link */ }
  return show(state.preset, state);
}

async function start() {
  byId("stages").append(...stages.map((stage) => stage.root));
  const answer = await ask("presets\n");
  if (answer.error) { byId("notice").textContent = `The program does not start: ${answer.error.why}`; return; }
  presets = answer.presets;
  byId("preset").append(...presets.map((preset) => element("option", { value: preset.id }, preset.title)));
  byId("preset").addEventListener("change", () => show(byId("preset").value));
  byId("reset").addEventListener("click", () => show(byId("preset").value));
  byId("copy-link").addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(location.href); byId("notice").textContent = "copied"; }
    catch { byId("notice").textContent = "the link is in the address bar"; }
  });
  addEventListener("hashchange", restore);
  await restore();
  document.body.dataset.ready = "yes";
}

start();
