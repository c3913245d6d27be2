// Calls of the server. The token is kept in memory only, and forgotten with the page.
let token = "";

export const setToken = (value) => { token = value; };
export const hasToken = () => token !== "";

export class CallError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const all = { "content-type": "application/json" };
  if (token) all.authorization = token;
  return all;
}

async function failure(response) {
  const text = await response.text().catch(() => "");
  let message = text.trim();
  try {
    message = JSON.parse(text).message || message;
  } catch { /* The text itself is the message. */ }
  return new CallError(response.status, message || `the server answered ${response.status}`);
}

export async function call(path, body) {
  const response = await fetch(path, {
    method: "POST", headers: headers(), body: JSON.stringify(body || {}), credentials: "omit",
  });
  if (!response.ok) throw await failure(response);
  return response.json();
}

async function* pieces(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}

// The responses of a stream: one JSON object on each line.
export async function* stream(path, body, signal) {
  const response = await fetch(path, {
    method: "POST", headers: headers(), body: JSON.stringify(body), signal, credentials: "omit",
  });
  if (!response.ok) throw await failure(response);
  let rest = "";
  for await (const piece of pieces(response)) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line) continue;
      const message = JSON.parse(line);
      if (message.error) throw new CallError(200, message.error.message || "the stream has ended");
      yield message.result;
    }
  }
}

// Server-sent events. EventSource cannot send a token, so the events are read here.
export async function* events(path, lastId, signal) {
  const request = headers();
  request.accept = "text/event-stream";
  if (lastId) request["last-event-id"] = lastId;
  const response = await fetch(path, { headers: request, signal, credentials: "omit", cache: "no-store" });
  if (!response.ok) throw await failure(response);
  let rest = "";
  for await (const piece of pieces(response)) {
    const blocks = (rest + piece).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = { type: "message", data: "", id: "" };
      for (const line of block.split("\n")) {
        const colon = line.indexOf(":");
        if (colon <= 0) continue;
        const [name, value] = [line.slice(0, colon), line.slice(colon + 1).replace(/^ /, "")];
        if (name === "event") event.type = value;
        else if (name === "data") event.data += value;
        else if (name === "id") event.id = value;
      }
      if (event.data) yield event;
    }
  }
}

export const toBase64 = (text) => {
  const data = new TextEncoder().encode(text);
  return btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(""));
};

export const fromBase64 = (text) => Uint8Array.from(atob(text || ""), (letter) => letter.charCodeAt(0));

// The first key after all keys with this prefix; "\0" for all keys.
export function prefixEnd(text) {
  const data = Array.from(new TextEncoder().encode(text));
  while (data.length && data[data.length - 1] === 255) data.pop();
  if (!data.length) return btoa("\0");
  data[data.length - 1] += 1;
  return btoa(String.fromCharCode(...data));
}
