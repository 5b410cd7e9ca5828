/**
 * A client's side of `term.v1`, over as many connections as it takes. Pure: messages in, events out.
 *
 * The twin of sdk/cloche/_terminal_stream.py, which has the rules; tests/vectors/terminal/stream.json holds both to them.
 */

import { decodeFrame, encodeFrame, FrameType } from "./frames";
import { type Hello, parseServerMessage, type Role, type ServerMessage, type Welcome } from "./messages";

export const WINDOW_BYTES = 256 * 1024;
export const INPUT_WINDOW_BYTES = 256 * 1024;
export const INPUT_FRAME_BYTES = 16 * 1024;
export const ACK_BYTES = 64 * 1024;
export const RESEND_WITHIN_S = 10;

export type StreamEvent =
  | { event: "output"; offset: number; data: Uint8Array }
  | { event: "preamble"; data: Uint8Array }
  | { event: "reset"; start: number; cols: number; rows: number; lost: number; new_life: boolean }
  | { event: "resumed"; start: number }
  | { event: "resized"; cols: number; rows: number }
  | { event: "gap"; start: number; end: number }
  | { event: "role"; role: Role; answers_from: number | null }
  | { event: "discarded"; bytes: number }
  | { event: "ended"; code: number | null; signal: number | null }
  | { event: "refused"; code: string; message: string }
  | { event: "active"; offset: number };

export class ProtocolBroken extends Error {}

export type Outgoing = string | Uint8Array<ArrayBuffer>;

export class TerminalStream {
  epoch: string | null = null;
  role: Role | null = null;
  connected = false;
  ended = false;

  #expected: number | null = null;
  #taken = 0;
  #acked = 0;
  #input = new Uint8Array(0);
  #inputStart = 0;
  #inputSent = 0;
  #lostAt: number | null = null;

  constructor(readonly client: string) {}

  /** Bytes that were typed and of which it is not known that they arrived. */
  get unacknowledgedInput(): number {
    return this.#input.length;
  }

  /** The first message of a connection. */
  hello(size: { cols: number; rows: number } | null = null, visible = true): string {
    const message: Hello = {
      type: "hello",
      v: 1,
      client: this.client,
      in_off: this.#inputStart,
      visible,
      window: WINDOW_BYTES,
      ...(this.epoch !== null && this.#expected !== null ? { epoch: this.epoch, have: this.#expected } : {}),
      ...(size ?? {}),
    };
    return JSON.stringify(message);
  }

  /** The connection is gone. `now` is in seconds. */
  lost(now: number): void {
    this.connected = false;
    this.#lostAt ??= now;
  }

  /** Input to be sent by `toSend`. */
  type(data: Uint8Array): void {
    const joined = new Uint8Array(this.#input.length + data.length);
    joined.set(this.#input);
    joined.set(data, this.#input.length);
    this.#input = joined;
  }

  /** Output before this offset was dealt with. */
  took(offset: number): void {
    this.#taken = Math.max(this.#taken, offset);
  }

  /** Messages that may go out now. `quiet`: no output came for a while, so the last bit is acknowledged, too. */
  toSend(quiet = false): Outgoing[] {
    if (!this.connected) return [];
    const messages: Outgoing[] = [];
    if (this.#taken - this.#acked >= ACK_BYTES || (quiet && this.#taken > this.#acked)) {
      this.#acked = this.#taken;
      messages.push(JSON.stringify({ type: "ack", off: this.#acked }));
    }
    const limit = Math.min(this.#input.length, INPUT_WINDOW_BYTES);
    for (let at = this.#inputSent - this.#inputStart; at < limit; at = this.#inputSent - this.#inputStart) {
      const piece = this.#input.subarray(at, Math.min(at + INPUT_FRAME_BYTES, limit));
      messages.push(encodeFrame(FrameType.INPUT, this.#inputSent, piece));
      this.#inputSent += piece.length;
    }
    return messages;
  }

  /** What a message means. Throws `ProtocolBroken`. */
  receive(message: string | Uint8Array, now: number): StreamEvent[] {
    try {
      return typeof message === "string" ? this.#said(parseServerMessage(message), now) : this.#frame(message);
    } catch (error) {
      throw error instanceof ProtocolBroken ? error : new ProtocolBroken(String(error));
    }
  }

  #frame(message: Uint8Array): StreamEvent[] {
    const frame = decodeFrame(message);
    if (frame.type === FrameType.PREAMBLE) return [{ event: "preamble", data: frame.payload }];
    if (frame.type !== FrameType.OUTPUT || this.#expected === null) throw new ProtocolBroken("unexpected frame");
    const events = this.#skipTo(frame.offset);
    const fresh = frame.payload.subarray(this.#expected - frame.offset);
    if (fresh.length > 0) {
      events.push({ event: "output", offset: this.#expected, data: fresh });
      this.#expected += fresh.length;
    }
    return events;
  }

  /** A gap, when `offset` is beyond what is expected next. */
  #skipTo(offset: number): StreamEvent[] {
    if (this.#expected === null || offset <= this.#expected) return [];
    const gap: StreamEvent = { event: "gap", start: this.#expected, end: offset };
    this.#expected = offset;
    return [gap];
  }

  #said(message: ServerMessage, now: number): StreamEvent[] {
    switch (message.type) {
      case "welcome":
        return this.#welcome(message, now);
      case "size":
        return [{ event: "resized", cols: message.cols, rows: message.rows }];
      case "exit":
        this.ended = true;
        return [{ event: "ended", code: message.code, signal: message.signal }];
      case "in_ack":
        this.#acknowledged(message.off);
        return [];
      case "role":
        return [this.#role(message.role, message.live_from)];
      case "lag": {
        const events = this.#skipTo(message.end);
        this.#acked = this.#taken = Math.max(this.#taken, message.end);
        return events;
      }
      case "activity":
        return [{ event: "active", offset: message.off }];
      case "error":
        return [{ event: "refused", code: message.code, message: message.message }];
      case "pong":
        return [];
    }
  }

  #welcome(message: Welcome, now: number): StreamEvent[] {
    this.connected = true;
    const newLife = this.epoch !== message.epoch;
    const events = this.#reconcileInput(message.in_off, newLife && this.epoch !== null, now);
    this.#lostAt = null;
    if (message.mode === "resume" && (newLife || message.start !== this.#expected)) {
      throw new ProtocolBroken(`resumed at ${message.start} instead of ${this.#expected}`);
    }
    this.epoch = message.epoch;
    this.#expected = this.#acked = this.#taken = message.start;
    const { start, cols, rows, lost } = message;
    events.push(
      message.mode === "resume"
        ? { event: "resumed", start }
        : { event: "reset", start, cols, rows, lost, new_life: newLife },
    );
    return [...events, this.#role(message.role, message.live_from)];
  }

  #role(role: Role, liveFrom: number): StreamEvent {
    this.role = role;
    return { event: "role", role, answers_from: role === "controller" ? liveFrom : null };
  }

  /** Drop what arrived; send the rest again, or drop it when it is too late. */
  #reconcileInput(taken: number, otherLife: boolean, now: number): StreamEvent[] {
    this.#acknowledged(taken);
    const late = otherLife || (this.#lostAt !== null && now - this.#lostAt >= RESEND_WITHIN_S);
    const count = late ? this.#input.length : 0;
    if (count > 0) this.#input = new Uint8Array(0);
    this.#inputStart = this.#inputSent = taken;
    return count > 0 ? [{ event: "discarded", bytes: count }] : [];
  }

  #acknowledged(offset: number): void {
    const count = Math.min(Math.max(0, offset - this.#inputStart), this.#input.length);
    this.#input = this.#input.slice(count);
    this.#inputStart += count;
    this.#inputSent = Math.max(this.#inputSent, this.#inputStart);
  }
}
