// Keys with their history, a live watch, and leases.
import { h, byId, counted, bytes, clock } from "./dom.js";
import { call, stream, toBase64, fromBase64, prefixEnd } from "./api.js";

const PAGE = 100, HISTORY = 25, WATCHED = 200, LEASES = 100;
let watching = null;
let built = false;

function readable(data) {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(data);
    if (!/[\u0000-\u0008\u000e-\u001f]/.test(text)) return text;
  } catch { /* Not text. */ }
  return Array.from(data.slice(0, 512), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}
const keyText = (base64) => readable(fromBase64(base64));

export function showKeys(state) {
  if (built) return;
  built = true;
  const prefix = h("input", { id: "prefix", autocomplete: "off", spellcheck: "false", placeholder: "all keys" });
  byId("view-keys").replaceChildren(
    h("section", { class: "card", "aria-labelledby": "h-keys" },
      h("h2", { id: "h-keys" }, "Keys"),
      h("form", { class: "row", onsubmit: (event) => { event.preventDefault(); list(state, prefix.value, null); } },
        h("label", { for: "prefix" }, "Prefix"), prefix,
        h("button", { type: "submit", class: "primary" }, "List"),
        h("button", { type: "button", id: "watch", "aria-pressed": "false", onclick: () => toggleWatch(state, prefix.value) }, "Watch live")),
      h("p", { id: "keys-error", class: "error", role: "alert" }),
      h("div", { class: "columns even" }, h("div", { id: "keys-list" }), h("div", { id: "key-detail", "aria-live": "polite" })),
      h("div", { id: "keys-watch", role: "log", "aria-label": "Watched events" })),
    h("section", { class: "card", "aria-labelledby": "h-leases" },
      h("div", { class: "head" }, h("h2", { id: "h-leases" }, "Leases"),
        h("button", { type: "button", onclick: () => leases(state) }, "Refresh")),
      h("div", { id: "leases-list" })));
  list(state, "", null);
  leases(state);
}

async function attempt(run) {
  byId("keys-error").textContent = "";
  try {
    return await run();
  } catch (error) {
    byId("keys-error").textContent = error.message;
    return null;
  }
}

async function list(state, prefix, from) {
  const start = from || (prefix ? toBase64(prefix) : btoa("\0"));
  const request = { key: start, range_end: prefixEnd(prefix), limit: PAGE, keys_only: true };
  const reply = await attempt(() => state.call("/v3/kv/range", request));
  if (!reply) return;
  const kvs = reply.kvs || [];
  const next = reply.more ? btoa(atob(kvs[kvs.length - 1].key) + "\0") : null;
  byId("keys-list").replaceChildren(
    h("p", { class: "muted small" }, `${counted(reply.count || 0, "key", "keys")} from here, revision ${reply.header.revision}`),
    h("div", { class: "wide", tabindex: 0, role: "group", "aria-label": "Keys, scrollable" }, h("table", {},
      h("thead", {}, h("tr", {}, ["Key", "Revision", "Version", "Lease"].map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", {}, kvs.map((kv) => h("tr", {},
        h("th", { scope: "row" }, h("button", { type: "button", class: "link", onclick: () => detail(state, kv.key) }, keyText(kv.key))),
        h("td", { class: "number" }, kv.mod_revision), h("td", { class: "number" }, kv.version),
        h("td", {}, kv.lease ? leaseId(kv.lease) : "–")))))),
    next ? h("button", { type: "button", onclick: () => list(state, prefix, next) }, "Next keys") : "");
}

// The value now, and before each change, as far back as the history goes.
async function detail(state, key) {
  const versions = [];
  let revision = null, end = "";
  while (versions.length < HISTORY) {
    try {
      const reply = await state.call("/v3/kv/range", revision === null ? { key } : { key, revision: String(revision) });
      const kv = (reply.kvs || [])[0];
      if (!kv) {
        end = versions.length ? "The key did not exist before." : "The key does not exist.";
        break;
      }
      versions.push(kv);
      if (Number(kv.version) === 1) {
        end = "The key was created then.";
        break;
      }
      revision = BigInt(kv.mod_revision) - 1n;
    } catch (error) {
      end = /compacted/.test(error.message) ? "Older revisions are compacted." : error.message;
      break;
    }
  }
  const [now] = versions;
  byId("key-detail").replaceChildren(
    h("h3", {}, keyText(key)),
    now && h("pre", { tabindex: 0 }, readable(fromBase64(now.value))),
    now && h("p", { class: "muted small" }, `${bytes(fromBase64(now.value).length)}, created at revision ${now.create_revision}`, now.lease && `, lease ${leaseId(now.lease)}`),
    h("h3", {}, "History"),
    h("ol", { class: "history" }, versions.map((kv) => h("li", {}, h("span", { class: "when" }, `rev ${kv.mod_revision}`), " ",
      h("code", {}, readable(fromBase64(kv.value)).slice(0, 120) || "(empty)")))),
    h("p", { class: "muted small" }, end || `The newest ${HISTORY} versions.`));
}

const leaseId = (id) => BigInt.asUintN(64, BigInt(id)).toString(16);

async function toggleWatch(state, prefix) {
  const button = byId("watch");
  if (watching) {
    watching.abort();
    return;
  }
  watching = new AbortController();
  button.setAttribute("aria-pressed", "true");
  button.textContent = "Stop watching";
  const lines = h("ol", { class: "timeline" });
  byId("keys-watch").replaceChildren(h("h3", {}, `Events of ${prefix ? `keys with the prefix ${prefix}` : "all keys"}`), lines);
  const request = { create_request: { key: prefix ? toBase64(prefix) : btoa("\0"), range_end: prefixEnd(prefix) } };
  try {
    for await (const reply of stream("/v3/watch", request, watching.signal)) {
      if (reply.canceled) throw new Error(reply.cancel_reason || "the watch was cancelled");
      for (const event of reply.events || []) {
        const removed = event.type === "DELETE";
        lines.prepend(h("li", {}, h("span", { class: "when" }, clock(Date.now())), h("span", { class: "what" },
          removed ? "✕ deleted " : "● put ", h("strong", {}, keyText(event.kv.key)),
          removed ? "" : [" = ", h("code", {}, readable(fromBase64(event.kv.value)).slice(0, 120))],
          h("span", { class: "muted" }, ` rev ${event.kv.mod_revision}`))));
        while (lines.children.length > WATCHED) lines.lastChild.remove();
      }
    }
  } catch (error) {
    if (!watching.signal.aborted) byId("keys-error").textContent = error.message;
  }
  watching = null;
  button.setAttribute("aria-pressed", "false");
  button.textContent = "Watch live";
}

async function leases(state) {
  const reply = await attempt(() => call("/v3/lease/leases", {}));
  if (!reply) return;
  const ids = (reply.leases || []).slice(0, LEASES).map((one) => one.ID);
  const rows = await Promise.all(ids.map((ID) => call("/v3/lease/timetolive", { ID, keys: true }).catch(() => null)));
  byId("leases-list").replaceChildren(ids.length === 0 ? h("p", { class: "muted" }, "There are no leases.") : h("table", {},
    h("thead", {}, h("tr", {}, ["Lease", "Granted", "Left", "Keys"].map((head) => h("th", { scope: "col" }, head)))),
    h("tbody", {}, rows.filter(Boolean).map((row) => h("tr", {},
      h("th", { scope: "row" }, leaseId(row.ID)), h("td", { class: "number" }, `${row.grantedTTL || 0} s`),
      h("td", { class: "number" }, `${row.TTL || 0} s`), h("td", {}, (row.keys || []).map(keyText).join(", ") || "–"))))));
}
