import { Terminal } from "@xterm/headless";
import { expect, test } from "vitest";
import { hearCopies, MAX_ENCODED, shown, wantedText } from "../src/terminal/clipboard";

const base64 = (text: string) => Buffer.from(text).toString("base64");
const osc = (data: string) => `\x1b]52;${data}\x07`;

test.each<[string, string, string | null]>([
  ["text", `c;${base64("grüße\n")}`, "grüße\n"],
  ["no selection named", `;${base64("x")}`, "x"],
  ["several selections", `pc;${base64("x")}`, "x"],
  ["a read", "c;?", null],
  ["a read of several", "pcs;?", null],
  ["clearing", "c;", null],
  ["clearing with what is no base64", "c;!", null],
  ["nothing at all", "", null],
  ["no data", "c", null],
  ["too many fields", `c;${base64("x")};x`, null],
  ["no UTF-8", `c;${Buffer.from([0xff, 0xfe]).toString("base64")}`, null],
  ["as much as is allowed", `c;${"AAAA".repeat(MAX_ENCODED / 4)}`, "\0".repeat((MAX_ENCODED / 4) * 3)],
  ["more than is allowed", `c;${"AAAA".repeat(MAX_ENCODED / 4 + 1)}`, null],
])("%s", (_, data, text) => {
  expect(wantedText(data)).toBe(text);
});

test("writes are handed on, reads are answered by nobody, and what is replayed asks for nothing", async () => {
  const terminal = new Terminal({ allowProposedApi: true });
  const wanted: string[] = [];
  const answers: string[] = [];
  terminal.onData((data) => answers.push(data));
  let muted = true;
  hearCopies(
    terminal.parser as never,
    () => muted,
    (text) => wanted.push(text),
  );
  const write = (data: string) => new Promise<void>((resolve) => terminal.write(data, resolve));
  await write(osc(`c;${base64("old")}`));
  expect(wanted).toEqual([]);
  muted = false;
  await write(osc(`c;${base64("new")}`) + osc("c;?"));
  expect(wanted).toEqual(["new"]);
  await write("\x1b[c"); // a question that is answered: answers are seen here
  expect(answers).toHaveLength(1);
});

test.each<[string, string, string]>([
  ["plain", "ls -l\n\tü 字 🙂", "ls -l\n\tü 字 🙂"],
  ["controls", "a\x1b[2Jb\rc\x7f", "a\\u{1b}[2Jb\\u{d}c\\u{7f}"],
  ["other directions", "a\u202eb\u2066", "a\\u{202e}b\\u{2066}"],
  ["nothing to see", "a\u200bb\u{e0041}\u2028", "a\\u{200b}b\\u{e0041}\\u{2028}"],
  ["half a character", "\ud800x", "\\u{d800}x"],
])("what is shown: %s", (_, text, expected) => {
  expect(shown(text)).toBe(expected);
});

test("only the beginning is shown, and says so", () => {
  expect(shown("x".repeat(10), 10)).toBe("x".repeat(10));
  expect(shown("x".repeat(11), 10)).toBe(`${"x".repeat(10)}…`);
  expect(shown("🙂".repeat(11), 10)).toBe(`${"🙂".repeat(10)}…`);
});
