/**
 * Compares screens: reads {name, viewers: [[event...]...]} per line on standard input, feeds every viewer's events to a
 * headless xterm.js, and prints what differs from the first viewer. Exit code 1 when anything does.
 */

import xterm from "@xterm/headless";
import { createInterface } from "node:readline";

const { Terminal } = xterm;

async function screenOf(events) {
  const terminal = new Terminal({ allowProposedApi: true, cols: 80, rows: 24, scrollback: 5000 });
  const write = (data) => new Promise((resolve) => terminal.write(data, resolve));
  for (const event of events) {
    if (event.data !== undefined) await write(Buffer.from(event.data, "base64"));
    if (event.reset) terminal.reset();
    if (event.cols !== undefined) terminal.resize(event.cols, event.rows);
  }
  const buffer = terminal.buffer.active;
  const lines = [];
  for (let row = 0; row < buffer.length; row += 1) lines.push(cellsOf(buffer.getLine(row)));
  const { cursorX, cursorY, type, baseY } = buffer;
  return { size: [terminal.cols, terminal.rows], cursor: [cursorX, cursorY], type, baseY, modes: terminal.modes, lines };
}

function cellsOf(line) {
  const cells = [];
  for (let column = 0; column < line.length; column += 1) {
    const cell = line.getCell(column);
    const flags = [cell.isBold(), cell.isDim(), cell.isItalic(), cell.isUnderline(), cell.isInverse(), cell.isInvisible()];
    const colours = [cell.getFgColorMode(), cell.getFgColor(), cell.getBgColorMode(), cell.getBgColor()];
    cells.push([cell.getChars(), cell.getWidth(), ...colours, flags.map(Number).join("")].join("|"));
  }
  return cells.join("\n");
}

let failed = false;
for await (const line of createInterface({ input: process.stdin })) {
  const { name, viewers } = JSON.parse(line);
  const [first, ...others] = await Promise.all(viewers.map(screenOf));
  for (const [index, other] of others.entries()) {
    for (const field of Object.keys(first)) {
      if (JSON.stringify(first[field]) === JSON.stringify(other[field])) continue;
      failed = true;
      const row = field === "lines" ? first.lines.findIndex((text, at) => text !== other.lines[at]) : "";
      console.log(`${name}: viewer ${index + 1} differs in ${field} ${row}`);
    }
  }
  console.log(`${name}: ${first.lines.length} lines compared, ${first.type} screen`);
}
process.exit(failed ? 1 : 0);
