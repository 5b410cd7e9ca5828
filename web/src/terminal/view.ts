/**
 * TerminalView: xterm.js, fed by stream events. Owns the Terminal for the page's life; the page only gives it a place.
 *
 * Everything goes through the terminal's own write queue, so sizes and roles take effect between the right two bytes.
 */

import { FitAddon } from "@xterm/addon-fit";
import { SearchAddon } from "@xterm/addon-search";
import { Unicode11Addon } from "@xterm/addon-unicode11";
import { WebLinksAddon } from "@xterm/addon-web-links";
import { Terminal } from "@xterm/xterm";
import type { StreamEvent } from "../protocol/stream";
import { copyText, hearCopies } from "./clipboard";
import { actionOf } from "./keys";
import { muteQueries } from "./queries";

export interface ViewListener {
  onInput(data: Uint8Array): void;
  onTook(offset: number): void;
  onTitle(title: string): void;
  onSearch(): void;
  onBell(): void;
  /** A program wants this copied; nothing is copied before a person has said yes. */
  onCopyWanted(text: string): void;
}

const FOCUS_REPORTS = new Set(["\x1b[I", "\x1b[O"]);

export class TerminalView {
  readonly terminal = new Terminal({
    allowProposedApi: true,
    cursorBlink: true,
    fontFamily: '"DejaVu Sans Mono", Menlo, Consolas, monospace',
    fontSize: 14,
    minimumContrastRatio: 4.5,
    scrollback: 10_000,
    theme: { background: "#101418", foreground: "#e6e6e6" },
  });
  readonly search = new SearchAddon();
  readonly #fit = new FitAddon();
  readonly #encoder = new TextEncoder();
  #answersFrom: number | null = null;
  #announcedFrom: number | null = null; // what #answersFrom becomes once everything queued before it was parsed
  #parsed = 0;
  #controls = false;

  constructor(private readonly listener: ViewListener) {
    const terminal = this.terminal;
    terminal.loadAddon(this.#fit);
    terminal.loadAddon(this.search);
    terminal.loadAddon(new Unicode11Addon());
    terminal.loadAddon(new WebLinksAddon());
    terminal.unicode.activeVersion = "11";
    muteQueries(terminal.parser, () => this.isMuted);
    hearCopies(
      terminal.parser,
      () => this.isMuted,
      (text) => listener.onCopyWanted(text),
    );
    terminal.onData((data) => this.#typed(data));
    terminal.onBinary((data) => listener.onInput(Uint8Array.from(data, (character) => character.charCodeAt(0))));
    terminal.onTitleChange((title) => listener.onTitle(title));
    terminal.onBell(() => {
      if (!this.isMuted) listener.onBell();
    });
    terminal.attachCustomKeyEventHandler((event) => this.#onKey(event));
  }

  /** What is parsed now was answered before, or is another viewer's to answer. */
  get isMuted(): boolean {
    return this.#answersFrom === null || this.#parsed < this.#answersFrom;
  }

  open(place: HTMLElement): void {
    this.terminal.open(place);
  }

  /** The size that fits; null while there is nothing to measure. */
  fittingSize(): { cols: number; rows: number } | null {
    const size = this.#fit.proposeDimensions();
    if (size === undefined || !Number.isFinite(size.cols) || !Number.isFinite(size.rows)) return null;
    return { cols: Math.min(1000, Math.max(2, size.cols)), rows: Math.min(1000, Math.max(1, size.rows)) };
  }

  /** Whether keys reach the program. */
  setWritable(writable: boolean): void {
    this.terminal.options.disableStdin = !writable;
    this.terminal.options.cursorStyle = writable ? "block" : "underline";
  }

  take(event: StreamEvent): void {
    switch (event.event) {
      case "output":
        this.#write(event.offset, event.data);
        break;
      case "preamble":
        this.terminal.write(event.data);
        break;
      case "reset":
        this.#then(() => {
          this.terminal.reset();
          this.terminal.resize(event.cols, event.rows);
          this.#parsed = event.start;
        });
        break;
      case "resized":
        this.#then(() => this.terminal.resize(event.cols, event.rows));
        break;
      case "role":
        this.#controls = event.role === "controller";
        this.#announcedFrom = event.answers_from;
        this.#then(() => {
          this.#answersFrom = event.answers_from;
        });
        break;
      case "gap":
        this.#then(() => {
          this.#parsed = event.end;
        });
        break;
      default:
        break;
    }
  }

  /** Bytes before the place from which this client answers are parsed apart from those behind it. */
  #write(offset: number, data: Uint8Array): void {
    this.#then(() => {
      this.#parsed = offset;
    });
    const end = offset + data.length;
    const from = this.#announcedFrom;
    const cut = from !== null && offset < from && from < end ? from - offset : 0;
    if (cut > 0) {
      this.terminal.write(data.subarray(0, cut), () => {
        this.#parsed = offset + cut;
      });
    }
    this.terminal.write(data.subarray(cut), () => {
      this.#parsed = end;
      this.listener.onTook(end);
    });
  }

  /** After everything that was written before. */
  #then(work: () => void): void {
    this.terminal.write("", work);
  }

  #typed(data: string): void {
    if (!this.#controls && FOCUS_REPORTS.has(data)) return; // looking at it is no reason to take control
    this.listener.onInput(this.#encoder.encode(data));
  }

  #onKey(event: KeyboardEvent): boolean {
    if (event.type !== "keydown") return true;
    switch (actionOf(event, this.terminal.hasSelection())) {
      case "copy":
        event.preventDefault();
        void copyText(this.terminal.getSelection());
        this.terminal.clearSelection();
        return false;
      case "paste":
        return false; // the browser pastes, and xterm.js takes it as a paste
      case "search":
        event.preventDefault();
        this.listener.onSearch();
        return false;
      case "newline":
        event.preventDefault();
        this.listener.onInput(this.#encoder.encode("\n"));
        return false;
      case "pass":
        return true;
    }
  }
}
