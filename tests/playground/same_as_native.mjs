// Whether playground.wasm is stale: it must answer as the program of this tree does, for the
// presets and for every story of the core. What does not change an answer may differ.
import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { run } from "../../crates/server/playground/worker.js";

const native = process.argv[2];
const module = new WebAssembly.Module(readFileSync("crates/server/playground/playground.wasm"));
const folder = "crates/core/tests/scenarios";
const stories = readdirSync(folder).filter((name) => name.endsWith(".txt")).sort();
const requests = [["presets", "presets\n"]];
for (const name of stories) {
  const text = readFileSync(`${folder}/${name}`, "utf8");
  requests.push([`play ${name}`, `play\n${text}`], [`export ${name}`, `export\n${text}`]);
}
let stale = 0;
for (const [name, input] of requests) {
  const expected = execFileSync(native, { input, maxBuffer: 1 << 30 }).toString();
  if (run(module, input) !== expected) {
    stale += 1;
    console.log(`differs: ${name}`);
  }
}
console.log(`${requests.length} requests, ${stale} answered otherwise by playground.wasm`);
if (stale) {
  console.log("playground.wasm is stale: run scripts/playground.sh");
  process.exit(1);
}
