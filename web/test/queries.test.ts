/** Replayed queries are answered by nobody, live ones by the controller (vscode#123803, jupyterlab#17179). */

import { Terminal } from "@xterm/headless";
import { expect, test } from "vitest";
import { muteQueries } from "../src/terminal/queries";

const QUERIES = "\x1b[c\x1b[>c\x1b[6n\x1b[5n\x1b[?6n\x1b[?2026$p\x1b[4$p\x1bP$qm\x1b\\";

test("queries are swallowed while muted, and only then", async () => {
  const terminal = new Terminal({ allowProposedApi: true });
  const answers: string[] = [];
  terminal.onData((data) => answers.push(data));
  let muted = true;
  muteQueries(terminal.parser as never, () => muted);
  await new Promise<void>((resolve) => terminal.write(QUERIES, resolve));
  expect(answers).toEqual([]);
  muted = false;
  await new Promise<void>((resolve) => terminal.write(QUERIES, resolve));
  expect(answers.length).toBeGreaterThanOrEqual(6);
});
