import { describe, expect, test } from "vitest";
import { ProtocolBroken, type StreamEvent, TerminalStream } from "../src/protocol/stream";
import { bytesOf, hexOf, vectors } from "./vectors";

type Step = Record<string, unknown> & { at?: number };
interface Script {
  name: string;
  steps: Step[];
}

const { scripts } = vectors<{ scripts: Script[] }>("stream.json");

function plain(event: StreamEvent): unknown {
  return Object.fromEntries(
    Object.entries(event).map(([name, value]) => [name, value instanceof Uint8Array ? hexOf(value) : (value as unknown)]),
  );
}

function sent(stream: TerminalStream, quiet: boolean): unknown[] {
  return stream.toSend(quiet).map((m) => (typeof m === "string" ? (JSON.parse(m) as unknown) : hexOf(m)));
}

function messageOf(step: Step): string | Uint8Array {
  if (typeof step.receive_frame === "string") return bytesOf(step.receive_frame);
  return typeof step.receive_text === "string" ? step.receive_text : JSON.stringify(step.receive);
}

function carryOut(stream: TerminalStream, step: Step): void {
  if ("hello" in step) expect(JSON.parse(stream.hello())).toEqual(step.hello);
  else if ("lost" in step) stream.lost(step.lost as number);
  else if ("type" in step) stream.type(bytesOf(step.type as string));
  else if ("type_repeated" in step) {
    const [data, count] = step.type_repeated as [string, number];
    stream.type(bytesOf(data.repeat(count)));
  } else if ("took" in step) stream.took(step.took as number);
  else if ("send" in step) expect(sent(stream, false)).toEqual(step.send);
  else if ("send_quiet" in step) expect(sent(stream, true)).toEqual(step.send_quiet);
  else if ("send_lengths" in step) expect(stream.toSend().map((m) => m.length)).toEqual(step.send_lengths);
  else if ("unacknowledged" in step) expect(stream.unacknowledgedInput).toBe(step.unacknowledged);
  else if (step.broken === true) expect(() => stream.receive(messageOf(step), step.at ?? 0)).toThrow(ProtocolBroken);
  else expect(stream.receive(messageOf(step), step.at ?? 0).map(plain)).toEqual(step.events);
}

describe("the stream", () => {
  test.each(scripts)("$name", ({ steps }) => {
    const stream = new TerminalStream("client-0001");
    for (const step of steps) carryOut(stream, step);
  });
});
