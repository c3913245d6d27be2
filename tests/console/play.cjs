// Plays the console against real members. Each step fails with what was expected.
const assert = require("node:assert/strict");
const fs = require("node:fs");
const path = require("node:path");
const { chromium } = require("playwright-core");
const { Cluster, post, until } = require("./cluster.cjs");

const { QUORATE, WORK, SHOTS, PAGE_DIR } = process.env;
const axeSource = fs.readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const step = (text) => console.log(`console: ${text}`);
const base64 = (text) => Buffer.from(text).toString("base64");

async function open(browser, url, options) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce", ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(90000);
  const problems = [];
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => {
    // A refused call is shown in the page; the browser also notes it.
    if (message.type() === "error" && !/Failed to load resource/.test(message.text())) problems.push(message.text());
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(url)) problems.push(`a request to ${request.url()}`);
  });
  if (PAGE_DIR) {
    // Shows the page of a directory, without building the server again.
    await page.route(`${url}/console/**`, (route) => {
      const name = new URL(route.request().url()).pathname.replace("/console/", "") || "index.html";
      return route.fulfill({ path: path.join(PAGE_DIR, name) });
    });
  }
  await page.goto(`${url}/console/`);
  await page.locator("#live.good").waitFor();
  return { page, problems };
}

async function checkAxe(page, name) {
  // The page's own policy lets no other script in: the checker runs outside of it.
  await page.evaluate(axeSource);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
  const serious = violations.filter((one) => ["serious", "critical"].includes(one.impact));
  assert.deepEqual(serious.map((one) => `${one.id}: ${one.nodes.map((node) => node.target).join(" ")}`), [], `axe-core, ${name}`);
}

const shot = (page, name, fullPage = true) => page.screenshot({ path: path.join(SHOTS, `${name}.png`), fullPage });

async function leaderOf(cluster) {
  return until("a leader", async () => {
    for (const member of cluster.members.values()) {
      if (!member.process || member.process.exitCode !== null) continue;
      const status = await post(`${member.client}/quorate/v1/membership/status`, {}).catch(() => null);
      if (status?.member?.role === "ROLE_LEADER") return member;
    }
    return null;
  });
}

// Waits until the server has accepted what the dialog asked for; a refusal is shown in the dialog.
async function closed(page) {
  const dialog = page.locator("dialog[open]"), refusals = dialog.locator("[role=alert]:not(:empty)");
  await until("the dialog ends", async () => (await dialog.count()) === 0 || (await refusals.count()) > 0);
  assert.deepEqual(await refusals.allInnerTexts(), [], "refused");
}

// The leader is replaced through the console of a follower.
async function replaceLeader(browser, cluster) {
  const leader = await leaderOf(cluster);
  const follower = [...cluster.members.values()].find((member) => member.process && member !== leader);
  const { page, problems } = await open(browser, follower.client, { colorScheme: "light" });
  await page.getByText("1 more member may fail").waitFor();
  await until("all members report", async () => (await page.locator("#members tbody tr.live").count()) === 3);
  await until("the versions are shown", async () => !(await page.locator("#members").innerText()).includes("no report"));
  step("three members are live, one failure is tolerated");
  await shot(page, "console-light");
  await checkAxe(page, "cluster, light");

  const replace = page.getByRole("button", { name: `Replace ${leader.name}`, exact: true });
  assert.equal(await replace.isDisabled(), true, "nothing can be changed before changes are allowed");
  await page.getByRole("button", { name: "Read-only: allow changes" }).click();
  await replace.click();
  const fresh = await cluster.prepare("m4");
  await page.getByLabel("Name of the new member").fill("m4");
  await page.getByLabel("Peer URL").fill(fresh.peer);
  await page.getByRole("button", { name: "Preview the plan" }).click();
  await page.locator("table.plan").waitFor();
  assert.match(await page.locator("table.plan").innerText(), /add learners \(m4\)/);
  const confirm = page.getByRole("button", { name: `Replace ${leader.name}`, exact: true }).last();
  assert.equal(await confirm.isDisabled(), true, "the name has to be typed");
  await page.getByLabel(/Type .* to confirm/).fill("m");
  assert.equal(await confirm.isDisabled(), true);
  await page.getByLabel(/Type .* to confirm/).fill(leader.name);
  await shot(page, "console-plan", false);
  await checkAxe(page, "dialog");
  await confirm.click();
  await page.getByText(`Change under way: Replacing ${leader.name} with m4`).waitFor();
  await page.locator("#change").getByText(/m4: /).first().waitFor();
  step(`the change waits for m4, and says why: ${(await page.locator("#change li").last().innerText()).trim()}`);
  await shot(page, "console-change");
  await checkAxe(page, "change");
  const dark = await open(browser, follower.client, { colorScheme: "dark" });
  await dark.page.getByText("Change under way").waitFor();
  await dark.page.locator("#change").getByText(/m4: /).first().waitFor();
  await shot(dark.page, "console-change-dark");
  await checkAxe(dark.page, "change, dark");

  cluster.start("m4", "existing", ["m1", "m2", "m3", "m4"]);
  await page.locator("#change").waitFor({ state: "hidden" });
  await until("the new members are shown", async () => {
    const names = await page.locator("#members tbody .name").allInnerTexts();
    return names.length === 3 && names.includes("m4") && !names.includes(leader.name);
  });
  await page.getByText("1 more member may fail").waitFor();
  await page.locator("#timeline").getByText(/ended: reached/).waitFor();
  const timeline = await page.locator("#timeline-body").innerText();
  for (const word of ["proposed", "committed", "counts", "settled", "leads term"]) {
    assert.ok(timeline.includes(word), `${word} in the timeline`);
  }
  step("the leader was replaced; the timeline has every stage");
  await shot(page, "console-after");
  await shot(dark.page, "console-dark");
  assert.deepEqual([...problems, ...dark.problems], []);
  await dark.page.context().close();
  await page.context().close();
}

// Leadership is transferred through the console of a member that neither leads nor is to lead.
async function transferLeadership(browser, cluster) {
  const leader = await leaderOf(cluster);
  const running = [...cluster.members.values()].filter((member) => member.process?.exitCode === null);
  const [through, target] = running.filter((member) => member !== leader);
  const { page, problems } = await open(browser, through.client, { colorScheme: "light" });
  await page.getByText(/may fail/).waitFor();
  const make = page.getByRole("button", { name: `Make leader: ${target.name}`, exact: true });
  assert.equal(await make.isDisabled(), true, "nothing can be changed before changes are allowed");
  await page.getByRole("button", { name: "Read-only: allow changes" }).click();
  await make.click();
  await page.getByLabel(/Type .* to confirm/).fill(target.name);
  await page.getByRole("dialog").getByRole("button", { name: "Transfer leadership", exact: true }).click();
  await closed(page);
  await page.locator("#leaders-body").getByText(new RegExp(`${target.name}.* leads term`)).waitFor();
  assert.equal((await leaderOf(cluster)).name, target.name, "the chosen member leads");
  step(`${through.name}'s page made ${target.name} the leader in place of ${leader.name}`);
  assert.deepEqual(problems, []);
  await page.context().close();
}

// Everything with the keyboard: allow changes, add a member, cancel the change.
async function keyboardOnly(browser, cluster) {
  const member = await leaderOf(cluster);
  const { page, problems } = await open(browser, member.client, { colorScheme: "light" });
  await page.getByText(/may fail/).waitFor();
  const press = (key) => page.keyboard.press(key);
  const focusOn = async (match) => {
    for (let count = 0; count < 80; count += 1) {
      await press("Tab");
      // Beyond the last element the body has the focus, which contains every text.
      const text = await page.evaluate(() => !/^(A|BUTTON|INPUT)$/.test(document.activeElement.tagName) ? "" : `${document.activeElement.textContent} ${document.activeElement.getAttribute("aria-label") || ""} ${document.activeElement.id}`);
      if (match.test(text)) return;
    }
    throw new Error(`the keyboard does not reach ${match}`);
  };
  await focusOn(/Skip to the content/);
  await focusOn(/Read-only/);
  await press("Space");
  await focusOn(/Add a member/);
  await press("Enter");
  await page.locator("dialog[open]").waitFor();
  const ghost = await cluster.prepare("m5");
  await page.keyboard.type("m5");
  await press("Tab");
  await page.keyboard.type(ghost.peer);
  await press("Enter");
  await page.locator("table.plan").waitFor();
  await until("the confirmation has the focus", () => page.evaluate(() => document.activeElement.id === "confirm"));
  await page.keyboard.type("m5");
  await press("Enter");
  await page.getByText("Change under way: Adding m5 as a voter").waitFor();
  step("a member was added with the keyboard alone");
  await focusOn(/Cancel the change/);
  await press("Enter");
  await page.locator("dialog[open]").waitFor();
  await page.keyboard.type("cancel");
  await press("Enter");
  await closed(page);
  await page.locator("#change").waitFor({ state: "hidden" });
  await page.locator("#timeline").getByText(/ended: cancelled/).waitFor();
  await until("m5 is gone", async () => !(await page.locator("#members tbody .name").allInnerTexts()).includes("m5"));
  step("the change was cancelled with the keyboard alone");
  await focusOn(/Make leader/);
  assert.deepEqual(problems, []);
  await page.context().close();
}

async function browseKeys(browser, cluster) {
  const { client } = await leaderOf(cluster);
  const put = (key, value, lease) => post(`${client}/v3/kv/put`, { key: base64(key), value: base64(value), lease });
  const lease = await post(`${client}/v3/lease/grant`, { TTL: 600 });
  for (const value of ["1", "2", "3"]) await put("app/mode", value);
  await put("app/owner", "m2", lease.ID);
  const { page, problems } = await open(browser, client, { colorScheme: "light" });
  await page.getByRole("link", { name: "Keys" }).click();
  await page.getByRole("button", { name: "app/mode" }).click();
  await until("the history is shown", async () => (await page.locator(".history li").count()) === 3);
  assert.match(await page.locator("#leases-list").innerText(), /app\/owner/);
  await page.getByLabel("Prefix").fill("app/");
  await page.getByRole("button", { name: "Watch live" }).click();
  await until("the watch shows a put", async () => {
    await put("app/live", "now");
    return (await page.locator("#keys-watch").innerText()).includes("app/live");
  });
  await checkAxe(page, "keys");
  await shot(page, "console-keys");
  step("keys, their history, leases and a live watch are shown");
  assert.deepEqual(problems, []);
  await page.context().close();
}

// With users: nothing is shown before the sign-in.
async function signIn(browser, cluster) {
  const { client } = await leaderOf(cluster);
  for (const [call, body] of [
    ["user/add", { name: "root", password: "secret" }], ["role/add", { name: "root" }],
    ["user/grant", { user: "root", role: "root" }], ["enable", {}],
  ]) await post(`${client}/v3/auth/${call}`, body);
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  const page = await context.newPage();
  page.setDefaultTimeout(90000);
  await page.goto(`${client}/console/`);
  await page.getByLabel("User").fill("root");
  await page.getByLabel("Password").fill("wrong");
  await page.getByRole("dialog").getByRole("button", { name: "Sign in" }).click();
  await page.getByText(/authentication failed/).waitFor();
  await page.getByLabel("Password").fill("secret");
  await page.getByRole("dialog").getByRole("button", { name: "Sign in" }).click();
  await page.getByText(/may fail/).waitFor();
  assert.equal(await page.getByRole("button", { name: "Add a member…" }).isDisabled(), false);
  const stored = await page.evaluate(() => JSON.stringify([document.cookie, { ...localStorage }, { ...sessionStorage }]));
  assert.doesNotMatch(stored, /secret|\./, "neither the password nor the token is stored");
  step("signed in; nothing secret is stored");
  await context.close();
}

async function main() {
  const cluster = new Cluster(QUORATE, WORK);
  const browser = await chromium.launch({
    executablePath: process.env.CHROMIUM || "/usr/bin/chromium",
    args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
      "--disable-component-update", "--disable-sync"],
  });
  try {
    const names = ["m1", "m2", "m3"];
    for (const name of names) await cluster.prepare(name);
    for (const name of names) cluster.start(name, "new", names);
    await leaderOf(cluster);
    await replaceLeader(browser, cluster);
    await transferLeadership(browser, cluster);
    await keyboardOnly(browser, cluster);
    await browseKeys(browser, cluster);
    await signIn(browser, cluster);
    step("done");
  } finally {
    await browser.close();
    await cluster.stop();
  }
}

main().catch((error) => {
  console.error(error);
  process.exitCode = 1;
});
