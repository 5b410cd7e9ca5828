/**
 * Queries: sequences a terminal answers by typing. A replay, or a viewer that is not in control, must not answer; else the
 * answers are typed into the shell a second time (vscode#123803, jupyterlab#17179). Handlers that return true swallow them.
 */

import type { IFunctionIdentifier, IParser } from "@xterm/xterm";

const CSI: IFunctionIdentifier[] = [
  { final: "c" },
  { prefix: ">", final: "c" },
  { prefix: "=", final: "c" },
  { final: "n" },
  { prefix: "?", final: "n" },
  { intermediates: "$", final: "p" },
  { prefix: "?", intermediates: "$", final: "p" },
  { prefix: ">", final: "q" },
  { prefix: "?", final: "u" },
  { final: "t" },
];
const DCS: IFunctionIdentifier[] = [
  { intermediates: "$", final: "q" },
  { intermediates: "+", final: "q" },
];
const OSC_COLOURS = [4, 10, 11, 12];

/** Swallow queries while `isMuted()` says so. */
export function muteQueries(parser: IParser, isMuted: () => boolean): void {
  for (const id of CSI) parser.registerCsiHandler(id, isMuted);
  for (const id of DCS) parser.registerDcsHandler(id, isMuted);
  for (const number of OSC_COLOURS) parser.registerOscHandler(number, (data) => isMuted() && data.includes("?"));
}
