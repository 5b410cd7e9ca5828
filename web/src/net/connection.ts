/**
 * A connection that comes back: sockets, retries, heartbeats. Knows nothing of what the messages mean.
 *
 * Browsers hide WebSocket pings from scripts, so while visible it pings with a message of its own and gives a silent
 * connection up. Background timers may run once a minute only: then nothing is concluded from silence.
 */

import { finalReason, pauseBefore } from "./backoff";

export type LinkState =
  | { kind: "connecting" }
  | { kind: "connected" }
  | { kind: "waiting"; retryAt: number }
  | { kind: "ended"; reason: string };

/** What of WebSocket is used. */
export interface SocketLike {
  binaryType: string;
  readonly readyState: number;
  onopen: (() => void) | null;
  onmessage: ((event: { data: unknown }) => void) | null;
  onclose: ((event: { code: number; reason: string }) => void) | null;
  send(data: string | Uint8Array<ArrayBuffer>): void;
  close(): void;
}

export interface Surroundings {
  open(): SocketLike;
  /** Why there is no connection, when that is known and final; else null. A failed upgrade tells a script nothing. */
  diagnose(): Promise<string | null>;
  now(): number;
  random(): number;
  after(seconds: number, work: () => void): () => void;
  isVisible(): boolean;
}

export interface Listener {
  onOpen(): void;
  onMessage(data: string | Uint8Array): void;
  onLost(): void;
  onState(state: LinkState): void;
}

/** `WebSocket.OPEN`. */
const OPEN = 1;

export const PING_S = 15;
export const PROBE_S = 3;

export class Connection {
  #socket: SocketLike | null = null;
  #attempt = 0;
  #cancelRetry: (() => void) | null = null;
  #cancelPing: (() => void) | null = null;
  #cancelProbe: (() => void) | null = null;
  #opened = false;
  #closed = false;

  constructor(
    private readonly around: Surroundings,
    private readonly listener: Listener,
  ) {}

  /** Connect now: at the start, and when the user does not want to wait. */
  start(): void {
    if (this.#closed || this.#socket !== null) return;
    this.#cancelRetry?.();
    this.#cancelRetry = null;
    this.listener.onState({ kind: "connecting" });
    const socket = this.around.open();
    this.#socket = socket;
    this.#opened = false;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => {
      this.#opened = true;
      this.listener.onOpen();
      this.#schedulePing();
    };
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code, reason }) => void this.#onClose(socket, code, reason);
  }

  /**
   * Ignored without a connection: whoever has something to keep keeps it. Messages that came before the end are still told
   * when the socket is closing already; a browser complains of answers to them.
   */
  send(data: string | Uint8Array<ArrayBuffer>): void {
    if (this.#opened && this.#socket?.readyState === OPEN) this.#socket.send(data);
  }

  /** Everything that was said arrived: the welcome is there. */
  settled(): void {
    this.#attempt = 0;
    this.listener.onState({ kind: "connected" });
  }

  /** The page came back, or the network did: is anybody there? */
  probe(): void {
    if (this.#socket === null) {
      this.start();
    } else if (this.#opened && this.#cancelProbe === null) {
      this.send(JSON.stringify({ type: "ping", n: 0 }));
      this.#cancelProbe = this.around.after(PROBE_S, () => this.#giveUp());
    }
  }

  /** For good. */
  close(reason: string): void {
    this.#closed = true;
    this.#drop();
    this.listener.onState({ kind: "ended", reason });
  }

  #receive(data: unknown): void {
    this.#cancelProbe?.();
    this.#cancelProbe = null;
    this.listener.onMessage(typeof data === "string" ? data : new Uint8Array(data as ArrayBuffer));
  }

  #schedulePing(): void {
    this.#cancelPing?.();
    this.#cancelPing = this.around.after(PING_S, () => {
      if (this.around.isVisible()) this.probe();
      this.#schedulePing();
    });
  }

  #giveUp(): void {
    const socket = this.#socket;
    if (socket !== null) void this.#onClose(socket, 1006);
  }

  async #onClose(socket: SocketLike, code: number, said = ""): Promise<void> {
    if (socket !== this.#socket) return;
    const opened = this.#opened;
    this.#drop();
    this.listener.onLost();
    const reason = finalReason(code, said) ?? (opened ? null : await this.around.diagnose());
    if (this.#closed || this.#socket !== null) return;
    if (reason !== null) {
      this.close(reason);
      return;
    }
    const pause = pauseBefore(this.#attempt, this.around.random);
    this.#attempt += 1;
    this.listener.onState({ kind: "waiting", retryAt: this.around.now() + pause });
    this.#cancelRetry = this.around.after(pause, () => this.start());
  }

  #drop(): void {
    const socket = this.#socket;
    this.#socket = null;
    this.#opened = false;
    for (const cancel of [this.#cancelPing, this.#cancelProbe, this.#cancelRetry]) cancel?.();
    this.#cancelPing = this.#cancelProbe = this.#cancelRetry = null;
    if (socket !== null) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }
}
