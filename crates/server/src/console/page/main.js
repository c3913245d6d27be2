// Follows the feed of events and shows each overview.
import { events, hasToken, setToken, call } from "./api.js";
import { byId, h } from "./dom.js";
import { Model } from "./model.js";
import { showTolerance, showQuorums, showHealth, showLeaders } from "./cluster.js";
import { showMembers } from "./members.js";
import { showChange, openDialog, closeDialog, changeDialog } from "./change.js";
import { showTimeline } from "./timeline.js";
import { showKeys } from "./keys.js";

const state = { model: new Model(), unlocked: false, canWrite: false, user: "", call: guarded, openDialog };
let lastId = "";
let connection = null;

// With users, whoever has signed in may try, and the server decides. Without them, the operator
// says first that changes are meant.
function updateAccess() {
  const auth = state.model.auth;
  state.canWrite = auth ? hasToken() : state.unlocked;
  const button = byId("access");
  button.textContent = hasToken()
    ? `Sign out ${state.user}`
    : auth ? "Sign in" : state.unlocked ? "Changes allowed: lock" : "Read-only: allow changes";
  button.setAttribute("aria-pressed", String(state.canWrite));
}

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").hidden = !text;
}

function live(kind, text) {
  const pill = byId("live");
  pill.className = `pill ${kind}`;
  if (pill.textContent !== text) pill.textContent = text;
}

// A call whose refusal for lack of rights asks to sign in.
async function guarded(path, body) {
  try {
    return await call(path, body);
  } catch (error) {
    if (error.status === 401 || /invalid auth token/.test(error.message)) signedOut();
    throw error;
  }
}

function signedOut() {
  setToken("");
  state.user = "";
  updateAccess();
}

function render() {
  const { model } = state;
  updateAccess();
  byId("cluster").textContent = `cluster ${model.cluster} · served by ${model.name(model.own)}`;
  document.title = `${model.tolerance?.has_quorum ? `${model.tolerance.failures || 0} tolerated` : "no quorum"} · Quorate console`;
  byId("add-member").disabled = !state.canWrite;
  showTolerance(model);
  showQuorums(model);
  showChange(state);
  showMembers(state);
  showTimeline(model);
  showHealth(model);
  showLeaders(state);
}

async function follow() {
  for (;;) {
    connection = new AbortController();
    try {
      for await (const event of events("/quorate/v1/events", lastId, connection.signal)) {
        if (event.type === "end") throw new Error(event.data);
        if (event.type !== "overview") continue;
        const overview = JSON.parse(event.data);
        // A member that has restarted counts from 1 again.
        if (Number(event.id || 0) < Number(lastId || 0)) state.model.restart();
        lastId = event.id;
        state.model.update(overview);
        live("good", "● live");
        notice("");
        render();
      }
      live("bad", "○ reconnecting");
    } catch (error) {
      if (connection.signal.aborted) continue;
      const needsUser = error.status === 400 || error.status === 401 || error.status === 403;
      live("bad", needsUser ? "○ not signed in" : "○ reconnecting");
      if (needsUser) {
        state.model.auth = true;
        signedOut();
        notice(`Sign in to see the cluster (${error.message}).`);
        await signIn();
        continue;
      }
      notice(error.status === 503 ? error.message : "");
    }
    await new Promise((resume) => setTimeout(resume, 1000));
  }
}

// Resolves when a user has signed in, or the dialog was closed.
function signIn() {
  return new Promise((resolve) => {
    const name = h("input", { id: "user", name: "user", autocomplete: "username", required: true });
    const password = h("input", { id: "password", type: "password", autocomplete: "current-password", required: true });
    const failed = h("p", { class: "error", role: "alert" });
    const submit = async (event) => {
      event.preventDefault();
      try {
        const reply = await call("/v3/auth/authenticate", { name: name.value, password: password.value });
        setToken(reply.token);
        state.user = name.value;
        lastId = "";
        state.model.restart();
        closeDialog();
      } catch (error) {
        failed.textContent = error.message;
        password.select();
      }
    };
    const dialog = openDialog("Sign in", h("form", { onsubmit: submit },
      h("label", { for: "user" }, "User"), name,
      h("label", { for: "password" }, "Password"), password, failed,
      h("div", { class: "buttons" }, h("button", { type: "submit", class: "primary" }, "Sign in"))));
    dialog.addEventListener("close", () => resolve(), { once: true });
  });
}

byId("access").addEventListener("click", () => {
  if (hasToken()) {
    signedOut();
    connection?.abort();
  } else if (state.model.auth) {
    signIn().then(() => connection?.abort());
  } else {
    state.unlocked = !state.unlocked;
    if (state.model.overview) render();
  }
});

byId("add-member").addEventListener("click", () => changeDialog(state, "add"));

const THEMES = ["auto", "light", "dark"];
function setTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  localStorage.setItem("quorate-theme", theme);
}
byId("theme").addEventListener("click", () => {
  const now = localStorage.getItem("quorate-theme") || "auto";
  setTheme(THEMES[(THEMES.indexOf(now) + 1) % THEMES.length]);
});
const saved = localStorage.getItem("quorate-theme");
setTheme(THEMES.includes(saved) ? saved : "auto");

function route() {
  const keys = location.hash === "#keys";
  byId("view-cluster").hidden = keys;
  byId("view-keys").hidden = !keys;
  for (const [id, current] of [["nav-cluster", !keys], ["nav-keys", keys]]) {
    if (current) byId(id).setAttribute("aria-current", "page");
    else byId(id).removeAttribute("aria-current");
  }
  if (keys) showKeys(state);
}
addEventListener("hashchange", route);
route();
updateAccess();
follow();
