// Members as processes on free ports, stopped at the end.
const { spawn } = require("node:child_process");
const fs = require("node:fs");
const net = require("node:net");
const path = require("node:path");

const free = () => new Promise((resolve, reject) => {
  // Below the range of outgoing connections, which could take a port before a member has bound it.
  const port = 10240 + Math.floor(Math.random() * 20000);
  const server = net.createServer();
  server.once("error", () => free().then(resolve, reject));
  server.listen(port, "127.0.0.1", () => server.close(() => resolve(port)));
});

class Cluster {
  constructor(binary, directory) {
    Object.assign(this, { binary, directory, members: new Map() });
  }

  async prepare(name) {
    const [peer, client] = [await free(), await free()];
    const member = { name, peer: `http://127.0.0.1:${peer}`, client: `http://127.0.0.1:${client}` };
    this.members.set(name, member);
    return member;
  }

  start(name, state, initial) {
    const member = this.members.get(name);
    const log = fs.openSync(path.join(this.directory, `${name}.log`), "a");
    member.process = spawn(this.binary, [
      "server", "--name", name, "--data-dir", path.join(this.directory, name),
      "--listen-peer-urls", member.peer, "--initial-advertise-peer-urls", member.peer,
      "--listen-client-urls", member.client, "--advertise-client-urls", member.client,
      "--initial-cluster", initial.map((one) => `${one}=${this.members.get(one).peer}`).join(","),
      "--initial-cluster-state", state, "--bcrypt-cost", "4", ...(member.arguments || []),
    ], { stdio: ["ignore", log, log] });
    member.ended = new Promise((resolve) => { member.process.once("exit", resolve); });
  }

  async stop() {
    for (const { process: child, ended } of this.members.values()) {
      if (!child) continue;
      child.kill("SIGKILL");
      await ended;
    }
  }
}

async function post(url, body, headers = {}) {
  const response = await fetch(url, { method: "POST", body: JSON.stringify(body), headers });
  const reply = await response.json();
  if (!response.ok) throw new Error(reply.message);
  return reply;
}

// Waits for a condition, with a timeout that only a broken server reaches.
async function until(what, condition, timeout = 90000) {
  const began = Date.now();
  let last;
  while (Date.now() - began < timeout) {
    try {
      const found = await condition();
      if (found) return found;
    } catch (error) {
      last = error;
    }
    await new Promise((resume) => setTimeout(resume, 100));
  }
  throw new Error(`timed out: ${what}${last ? ` (${last.message})` : ""}`);
}

module.exports = { Cluster, post, until };
