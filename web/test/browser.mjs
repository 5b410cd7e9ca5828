/**
 * Drives Debian's Chromium: node browser.mjs LOGIN_URL SHOTS_DIR WATCH_URL. Prints "ok" lines; throws where something is off.
 * `tests/e2e/test_browser.py` starts it with a real server and a real sandbox.
 */

import { chromium } from "playwright-core";
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

const [login, shots, watch] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});
const problems = [];

async function open(context, url) {
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  page.on("pageerror", (error) => problems.push(String(error)));
  await page.goto(url);
  return page;
}

const axe = await readFile(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");

/** axe-core, all its rules, best practices too. Injected over the debugging protocol: the page's own policy allows no script. */
async function checkAccess(page, what) {
  await page.evaluate(axe);
  const { violations, passes } = await page.evaluate(() => globalThis.axe.run());
  const found = violations.flatMap(({ id, help, nodes }) => nodes.map((node) => `${id}: ${help}: ${node.html}`));
  assert.deepEqual(found, [], `of ${what}`);
  assert.ok(passes.some(({ id }) => id === "document-title"), "axe has looked at nothing");
}

const copied = (page) => page.evaluate(() => navigator.clipboard.readText());

const rows = (page) => page.locator(".xterm-rows").innerText();

async function until(page, pattern, what) {
  const end = Date.now() + 60_000;
  for (;;) {
    const text = (await rows(page)).replaceAll("\u00a0", " ");
    if (pattern.test(text)) return;
    if (Date.now() > end) throw new Error(`no ${what}: ${text}\n${problems.join("\n")}`);
    await page.waitForTimeout(50);
  }
}

try {
  const context = await browser.newContext({ viewport: { width: 1000, height: 600 } });
  await context.grantPermissions(["clipboard-read", "clipboard-write"], { origin: new URL(login).origin });
  const page = await open(context, login);
  await page.locator(".status.connected").waitFor();
  assert.match(page.url(), /\/ui\/terminal\?sandbox=/);
  assert.doesNotMatch(page.url(), /token/);
  await until(page, /\$ /, "prompt");
  await page.keyboard.type("echo $((6*7)); stty size\n");
  await until(page, /^42\n\d+ \d+$/m, "output");
  console.log("ok types and shows");

  // xterm.js#5800: built bundles crashed at the first mode query.
  // Without echo: an answer that is there before `read` has begun would be shown in front of what is looked for.
  const query = "stty -echo; printf '\\033[?2026$p'; read -rsd y answer; stty echo";
  await page.keyboard.type(`${query}; echo mode answered: \${#answer}\n`);
  await until(page, /^mode answered: 1\d$/m, "answer to a mode query");
  await page.keyboard.type("printf '\\033[?1049h\\033[Hfull screen\\n'; read -rsn 1; printf '\\033[?1049l'\n");
  await until(page, /^full screen$/m, "alternate screen");
  await page.keyboard.type("q");
  await until(page, /mode answered/, "normal screen again");
  console.log("ok answers mode queries");

  await page.keyboard.type("seq 1 300; echo needle-$((1+1)); seq 1 60; echo all $((1+2)) done\n");
  await until(page, /^all 3 done$/m, "numbers");
  await page.keyboard.press("Control+Shift+F");
  await page.locator(".search input:focus").waitFor();
  await page.keyboard.type("needle-2");
  await page.keyboard.press("Enter");
  await until(page, /needle-2/, "found text");
  await page.keyboard.press("Escape");
  assert.doesNotMatch(await rows(page), /command not found/);
  console.log("ok searches");

  await page.evaluate(() => navigator.clipboard.writeText("what the person has copied"));
  await page.keyboard.type("printf '\\033]52;c;?\\a'; read -rst 1 answer; echo answered: [$answer]\n");
  await until(page, /^answered: \[\]$/m, "answer to a query of the clipboard");
  await page.keyboard.type("printf '\\033]52;c;%s\\a' $(printf 'rm -r \\033x' | base64); echo asked $((1+3))\n");
  await until(page, /^asked 4$/m, "request to copy");
  const prompt = page.locator(".copy-prompt");
  assert.match(await prompt.innerText(), /rm -r \\u\{1b\}x/);
  assert.equal(await copied(page), "what the person has copied");
  await page.keyboard.type("echo keys are the program\\'s\n"); // Enter is no yes
  await until(page, /^keys are the program's$/m, "what was typed");
  await checkAccess(page, "a request to copy");
  await page.screenshot({ path: `${shots}/copy.png` });
  await prompt.getByRole("button", { name: "Do not copy" }).click();
  await prompt.waitFor({ state: "detached" });
  assert.equal(await copied(page), "what the person has copied");
  await page.keyboard.type("printf '\\033]52;c;%s\\a' $(printf 'wanted' | base64)\n");
  await prompt.locator("button[aria-disabled=false]", { hasText: "Copy" }).click();
  await prompt.waitFor({ state: "detached" });
  assert.equal(await copied(page), "wanted");
  console.log("ok asks before a program copies");

  await page.reload();
  await page.locator(".status.connected").waitFor();
  await until(page, /^all 3 done$/m, "output after a reload");
  assert.doesNotMatch(await rows(page), /2026;\d/, "a replayed query was answered into the shell");
  assert.equal(await prompt.count(), 0, "a replayed request to copy asked again");
  console.log("ok survives a reload");

  const stranger = await browser.newContext({ viewport: { width: 700, height: 400 } });
  const watcher = await open(stranger, watch);
  await watcher.locator(".status.connected").waitFor();
  await until(watcher, /^all 3 done$/m, "output for a watcher");
  await watcher.locator(".xterm").click();
  await watcher.keyboard.type("echo intruder\n");
  await page.keyboard.type("echo from the $((1))st\n");
  await until(watcher, /from the 1st/, "live output for a watcher");
  assert.doesNotMatch(await rows(watcher), /intruder/);
  assert.match(await watcher.locator(".role").innerText(), /watching only/);
  console.log("ok read-only link");

  await page.keyboard.press("Control+Shift+F");
  await page.locator("button", { hasText: "Share" }).click();
  await page.locator(".notice").waitFor();
  await checkAccess(page, "the search and a notice");
  await page.screenshot({ path: `${shots}/share.png` });
  await page.locator("button", { hasText: "Dismiss" }).click();
  await checkAccess(watcher, "a watcher's page");
  const chooser = await open(context, new URL("/ui/terminal", login).href);
  await chooser.locator(".chooser a").first().waitFor();
  await checkAccess(chooser, "the list of sandboxes");
  await chooser.close();
  console.log("ok accessible");

  const second = await open(context, page.url());
  await second.locator(".status.connected").waitFor();
  await second.locator("button.take").click();
  await page.locator("button.take").waitFor();
  console.log("ok control passes on");

  await watcher.screenshot({ path: `${shots}/watcher.png` });
  const left = await page.evaluate(async () => {
    const at = new URLSearchParams(location.search);
    const path = `/v1/sandboxes/${at.get("sandbox")}/terminals/${at.get("terminal")}/shares`;
    const [first] = (await (await fetch(path)).json()).items;
    await fetch(`${path}/${first.id}`, { method: "DELETE" });
    return (await (await fetch(path)).json()).items.length;
  });
  assert.equal(left, 1);
  await watcher.locator(".status.ended", { hasText: "the link was revoked" }).waitFor();
  console.log("ok a revoked link says so");

  await context.setOffline(true);
  await page.screenshot({ path: `${shots}/terminal.png` });
  await context.setOffline(false);

  await second.keyboard.type("exit 3\n");
  await second.locator(".status", { hasText: "exited (3)" }).waitFor();
  await page.locator(".status", { hasText: "exited (3)" }).waitFor();
  await checkAccess(page, "an ended terminal");
  console.log("ok shows the exit");
  assert.deepEqual(problems, []);
} finally {
  await browser.close();
}
