/** One terminal on the page: connection, protocol and view put together, and what the page shows of them as signals. */

import { computed, signal } from "@preact/signals";
import { diagnose, openSocket, type Target } from "../net/api";
import { Connection, type LinkState } from "../net/connection";
import type { Role } from "../protocol/messages";
import { ProtocolBroken, type StreamEvent, TerminalStream } from "../protocol/stream";
import { TerminalView } from "../terminal/view";

const QUIET_MS = 100;
const RESIZE_MS = 80;
const FIRST_PAINT_MS = 60;

export class Session {
  readonly link = signal<LinkState>({ kind: "connecting" });
  readonly role = signal<Role | null>(null);
  readonly title = signal("");
  readonly notice = signal("");
  /** What a program wants in the clipboard; the last wish counts. */
  readonly wanted = signal<string | null>(null);
  readonly exit = signal<{ code: number | null; signal: number | null } | null>(null);
  readonly isPainting = signal(true);
  readonly isSearching = signal(false);
  readonly size = signal({ cols: 80, rows: 24 });
  readonly canWrite = computed(
    () => this.link.value.kind === "connected" && this.role.value !== "read_only" && this.exit.value === null,
  );

  readonly view = new TerminalView({
    onInput: (data) => this.#type(data),
    onTook: (offset) => this.#took(offset),
    onTitle: (title) => (this.title.value = title),
    onSearch: () => (this.isSearching.value = true),
    onBell: () => this.#flash(),
    onCopyWanted: (text) => (this.wanted.value = text),
  });
  readonly #stream = new TerminalStream(randomId());
  readonly #connection: Connection;
  #quiet: ReturnType<typeof setTimeout> | undefined;
  #resizing: ReturnType<typeof setTimeout> | undefined;
  #painted: ReturnType<typeof setTimeout> | undefined;

  constructor(readonly target: Target) {
    this.#connection = new Connection(
      {
        open: () => openSocket(target) as never,
        diagnose: () => diagnose(target),
        now: () => performance.now() / 1000,
        random: Math.random,
        after: (seconds, work) => {
          const timer = setTimeout(work, seconds * 1000);
          return () => clearTimeout(timer);
        },
        isVisible: () => document.visibilityState === "visible",
      },
      {
        onOpen: () => this.#connection.send(this.#stream.hello(this.view.fittingSize(), isVisible())),
        onMessage: (data) => this.#receive(data),
        onLost: () => this.#stream.lost(performance.now() / 1000),
        onState: (state) => (this.link.value = state),
      },
    );
  }

  /** Show it in `place`, and connect. */
  start(place: HTMLElement): void {
    this.view.open(place);
    this.canWrite.subscribe((writable) => this.view.setWritable(writable));
    new ResizeObserver(() => this.#fitSoon()).observe(place);
    document.addEventListener("visibilitychange", () => this.#onVisibility());
    window.addEventListener("pageshow", () => this.#connection.probe());
    window.addEventListener("online", () => this.#connection.probe());
    this.#connection.start();
  }

  retryNow(): void {
    this.#connection.start();
  }

  takeControl(): void {
    this.#connection.send(JSON.stringify({ type: "take_control" }));
    this.#sendSize();
    this.view.terminal.focus();
  }

  #receive(data: string | Uint8Array): void {
    try {
      for (const event of this.#stream.receive(data, performance.now() / 1000)) this.#take(event);
    } catch (error) {
      if (!(error instanceof ProtocolBroken)) throw error;
      this.#connection.close(`the server said something strange: ${error.message}`);
      return;
    }
    this.#flush();
  }

  #take(event: StreamEvent): void {
    this.view.take(event);
    switch (event.event) {
      case "reset":
        this.notice.value = event.lost > 0 ? `earlier output dropped (${Math.ceil(event.lost / 1024)} KiB)` : "";
        this.size.value = { cols: event.cols, rows: event.rows };
        this.#paintSoon();
        this.#connection.settled();
        break;
      case "resumed":
        this.#connection.settled();
        break;
      case "resized":
        this.size.value = { cols: event.cols, rows: event.rows };
        break;
      case "role":
        this.role.value = event.role;
        if (event.role === "controller") this.#fitSoon();
        break;
      case "gap":
        this.notice.value = `${Math.ceil((event.end - event.start) / 1024)} KiB of output are missing`;
        break;
      case "discarded":
        this.notice.value = `${event.bytes} bytes you typed were dropped: it was too late for them`;
        break;
      case "refused":
        this.notice.value = event.message;
        break;
      case "ended":
        this.exit.value = { code: event.code, signal: event.signal };
        break;
      default:
        break;
    }
  }

  #type(data: Uint8Array): void {
    if (!this.canWrite.value) return;
    this.#stream.type(data);
    this.#flush();
  }

  #took(offset: number): void {
    this.#stream.took(offset);
    this.#flush();
    clearTimeout(this.#quiet);
    this.#quiet = setTimeout(() => this.#flush(true), QUIET_MS);
    if (this.isPainting.value) this.#paintSoon();
  }

  /** The whole backlog is applied before anything is shown: no film of the past. */
  #paintSoon(): void {
    clearTimeout(this.#painted);
    this.#painted = setTimeout(() => (this.isPainting.value = false), FIRST_PAINT_MS);
  }

  #flush(quiet = false): void {
    for (const message of this.#stream.toSend(quiet)) this.#connection.send(message);
  }

  #fitSoon(): void {
    clearTimeout(this.#resizing);
    this.#resizing = setTimeout(() => this.#sendSize(), RESIZE_MS);
  }

  #sendSize(): void {
    const size = isVisible() ? this.view.fittingSize() : null;
    if (size !== null) this.#connection.send(JSON.stringify({ type: "resize", ...size }));
  }

  #onVisibility(): void {
    this.#connection.send(JSON.stringify({ type: "visible", on: isVisible() }));
    if (isVisible()) {
      this.#connection.probe();
      this.#fitSoon();
    }
  }

  #flash(): void {
    document.body.classList.add("bell");
    setTimeout(() => document.body.classList.remove("bell"), 120);
  }
}

function isVisible(): boolean {
  return document.visibilityState === "visible";
}

function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
