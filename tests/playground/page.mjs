// Drives the page. Arguments: the browser, the folder of the page, quorate-sim, and a folder for
// screenshots, which may be empty.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [browserPath, folder, sim, screenshots] = process.argv.slice(2);
const types = { html: "text/html", js: "text/javascript", css: "text/css", wasm: "application/wasm" };
const server = createServer((request, response) => {
  const name = new URL(request.url, "http://localhost").pathname.slice(1) || "index.html";
  try {
    const content = readFileSync(join(folder, name.replace(/[^a-z.]/g, "")));
    response.writeHead(200, { "content-type": types[name.split(".").pop()] }).end(content);
  } catch {
    response.writeHead(404).end();
  }
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const address = `http://127.0.0.1:${server.address().port}/`;
const browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox"] });
const context = await browser.newContext({ viewport: { width: 1400, height: 1100 }, acceptDownloads: true });
const page = await context.newPage();
const problems = [];
page.on("pageerror", (error) => problems.push(String(error)));
page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
page.on("request", (request) => request.url().startsWith("http") && !request.url().startsWith(address)
  && problems.push(`request to ${request.url()}`));
page.setDefaultTimeout(60000);

const stage = (name) => page.locator(`[data-stage=${name}]`);
const text = (name, part) => stage(name).locator(part).innerText();
const ready = () => page.waitForSelector("body[data-ready=yes]");
// The stories of a preset are played in a worker.
async function choose(id) {
  await page.selectOption("#preset", id);
  await page.waitForSelector("#stages[aria-busy=false]");
}
async function shot(name) {
  if (!screenshots) return;
  mkdirSync(screenshots, { recursive: true });
  await page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
}

await page.goto(address);
await ready();
const ids = await page.locator("#preset option").evaluateAll((options) => options.map((one) => one.value));
assert.deepEqual(ids, ["example_1", "example_2", "example_3", "example_4", "problem_2"]);

// Each preset: stuck and live, side by side.
for (const id of ids) {
  await choose(id);
  assert.equal(await page.locator("#preset").inputValue(), id);
  assert.match(await text("off", ".verdict"), /no leader/, id);
  assert.match(await text("on", ".verdict"), /m\d leads term \d/, id);
  assert.match(await text("off", ".command"), /expect no leader within 500 ticks/, id);
  for (const name of ["off", "on"]) assert.equal(await text(name, ".mistake"), "", `${id} ${name}`);
  await shot(id);
}

// Rewind and step: the same state at the same position.
await choose("example_1");
const lanes = () => stage("on").locator(".lanes").innerHTML();
await stage("on").locator("[data-act=first]").click();
const states = [];
const count = Number(await stage("on").locator("input[type=range]").getAttribute("max")) + 1;
for (let at = 0; at < count; at += 1) {
  states.push(await lanes());
  await stage("on").locator("[data-act=step]").click();
}
for (let at = count - 1; at >= 0; at -= 1) {
  assert.equal(await lanes(), states[at], `step ${at}`);
  await stage("on").locator("[data-act=back]").click();
}
assert.ok(new Set(states).size > 2, "steps change the cluster");

// Run plays to the end.
await stage("on").locator("[data-act=run]").click();
await page.waitForFunction(() => /^(\d+) of \1$/.test(document.querySelector("[data-stage=on] .position").textContent));
assert.match(await text("on", ".verdict"), /m4 leads/);

// Commands: crash the leader, partition, deliver, drop and delay messages.
const command = async (locator, expected) => {
  await locator.click();
  await page.waitForFunction(([text]) => document.querySelector("[data-stage=on] .command code").textContent === text, [expected]);
  assert.equal(await text("on", ".mistake"), "", expected);
};
const lane = (name) => stage("on").locator(`[data-member=${name}]`);
await command(lane("m4").getByText("Crash"), "crash m4");
assert.match(await text("on", ".verdict"), /no leader/);
await command(lane("m1").getByText("Restart"), "restart m1");
await command(lane("m1").getByText("Tick"), "tick m1");
await command(lane("m1").getByText("Campaign"), "campaign m1");
assert.ok(await stage("on").locator(".messages button").count() > 0, "messages are in flight");
await command(stage("on").locator(".messages li").first().getByText("Drop"), "drop m1 -> m2 PreVote first");
await command(stage("on").locator(".messages li").first().getByText("Delay"), "hold m1 -> m3 PreVote first");
await command(stage("on").getByText("Release delayed"), "release");
await command(stage("on").locator(".messages li").first().getByText("Deliver"), "deliver m1 -> m3 PreVote first");
await command(lane("m2").getByText("Isolate"), "cut m2 <-> *");
await command(stage("on").getByText("Heal the network"), "heal");
await command(stage("on").getByText("An election timeout passes"), "settle ticks=election");
await shot("edited");

// The link restores text and position, in another page.
await stage("on").locator("[data-act=back]").click();
const before = [await lanes(), await text("on", ".position")];
const other = await context.newPage();
await other.goto(page.url());
await other.waitForSelector("body[data-ready=yes]");
assert.deepEqual([await other.locator("[data-stage=on] .lanes").innerHTML(),
  await other.locator("[data-stage=on] .position").innerText()], before);
await other.close();

// The exported story passes in quorate-sim.
const [download] = await Promise.all([page.waitForEvent("download"), stage("on").locator("[data-act=export]").click()]);
const file = join(tmpdir(), `quorate-playground-${process.pid}.txt`);
writeFileSync(file, readFileSync(await download.path()));
const played = execFileSync(sim, ["scenario", file]).toString();
assert.match(played, /1 passed/, played);

// A mistake in the text is named, and does not lose the text.
await stage("on").locator("textarea").fill("# covers: S01\n# A story.\n\nclustre m1\n");
await page.waitForFunction(() => document.querySelector("[data-stage=on] .mistake").textContent.includes("line 4"));
// A damaged link is a new visit.
await page.goto(`${address}#damaged`);
await page.reload();
await ready();
assert.match(await text("off", ".verdict"), /no leader/);

// Keyboard: the playback buttons are reached with the tab key and work with keys.
await stage("on").locator("[data-act=back]").focus();
const position = await text("on", ".position");
await page.keyboard.press("ArrowLeft");
assert.notEqual(await text("on", ".position"), position);

// Dark, and narrow.
await page.emulateMedia({ colorScheme: "dark" });
await shot("dark");
await page.setViewportSize({ width: 420, height: 900 });
const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
assert.ok(overflow <= 0, `the page is ${overflow} pixels too wide on a phone`);
await shot("narrow");

assert.deepEqual(problems, []);
await browser.close();
server.close();
console.log(`playground: ${ids.length} presets, commands, rewind, link and export passed`);
