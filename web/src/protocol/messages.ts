/** JSON messages of `term.v1`; see docs/terminals.md and sdk/cloche/models/terminals.py. What a guest says is checked. */

export type Role = "controller" | "viewer" | "read_only";

export interface Welcome {
  type: "welcome";
  epoch: string;
  mode: "resume" | "replay";
  start: number;
  live_from: number;
  cols: number;
  rows: number;
  lost: number;
  alive: boolean;
  role: Role;
  in_off: number;
}

export type ServerMessage =
  | Welcome
  | { type: "size"; off: number; cols: number; rows: number }
  | { type: "exit"; off: number; code: number | null; signal: number | null }
  | { type: "in_ack"; off: number }
  | { type: "role"; role: Role; live_from: number }
  | { type: "lag"; start: number; end: number }
  | { type: "activity"; off: number }
  | { type: "pong"; n: number }
  | { type: "error"; code: string; message: string };

export type ClientMessage =
  | Hello
  | { type: "ack"; off: number }
  | { type: "resize"; cols: number; rows: number }
  | { type: "visible"; on: boolean }
  | { type: "take_control" }
  | { type: "ping"; n: number }
  | { type: "resync" };

export interface Hello {
  type: "hello";
  v: 1;
  client: string;
  epoch?: string;
  have?: number;
  in_off: number;
  cols?: number;
  rows?: number;
  visible: boolean;
  window: number;
}

type Kind = "number" | "string" | "boolean" | "number or null";

const FIELDS: Record<ServerMessage["type"], Record<string, Kind>> = {
  welcome: {
    epoch: "string",
    mode: "string",
    start: "number",
    live_from: "number",
    cols: "number",
    rows: "number",
    lost: "number",
    alive: "boolean",
    role: "string",
    in_off: "number",
  },
  size: { off: "number", cols: "number", rows: "number" },
  exit: { off: "number", code: "number or null", signal: "number or null" },
  in_ack: { off: "number" },
  role: { role: "string", live_from: "number" },
  lag: { start: "number", end: "number" },
  activity: { off: "number" },
  pong: { n: "number" },
  error: { code: "string", message: "string" },
};

/** The message in `text`; throws for anything else. */
export function parseServerMessage(text: string): ServerMessage {
  const value: unknown = JSON.parse(text);
  if (typeof value !== "object" || value === null || !("type" in value)) throw new Error("not a message");
  const fields = Object.hasOwn(FIELDS, String(value.type)) ? FIELDS[value.type as ServerMessage["type"]] : undefined;
  if (fields === undefined) throw new Error(`there is no message of type ${String(value.type)}`);
  for (const [name, kind] of Object.entries(fields)) {
    const given: unknown = (value as Record<string, unknown>)[name];
    const fits = kind === "number or null" ? given === null || typeof given === "number" : typeof given === kind;
    if (!fits) throw new Error(`${String(value.type)}.${name} is not a ${kind}`);
  }
  return value as ServerMessage;
}
