/** The page around one terminal: its state in words, and the few things to do with it. */

import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { call, terminalPath } from "../net/api";
import type { LinkState } from "../net/connection";
import { copyText } from "../terminal/clipboard";
import { CopyPrompt } from "./copy-prompt";
import type { Session } from "./session";

export function TerminalPage({ session }: { session: Session }) {
  const place = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (place.current !== null) session.start(place.current);
    session.view.terminal.focus();
  }, [session]);
  useEffect(() => {
    document.title = session.title.value || "Terminal";
  });
  return (
    <main class="terminal-page">
      <header>
        <Status session={session} />
        <h1 class="title">{session.title.value || "Terminal"}</h1>
        <Actions session={session} />
      </header>
      {session.isSearching.value && <SearchBar session={session} />}
      <div class={session.isPainting.value ? "screen painting" : "screen"} ref={place} />
      {session.wanted.value !== null && <CopyPrompt session={session} text={session.wanted.value} />}
      {session.notice.value !== "" && (
        <p class="notice" role="status">
          {session.notice.value}{" "}
          <button type="button" onClick={() => (session.notice.value = "")}>
            Dismiss
          </button>
        </p>
      )}
    </main>
  );
}

function Status({ session }: { session: Session }) {
  const link = session.link.value;
  return (
    <span class={`status ${link.kind}`} role="status" aria-live="polite">
      {wordsOf(link, session)}
      {link.kind === "waiting" && (
        <button type="button" onClick={() => session.retryNow()}>
          Now
        </button>
      )}
    </span>
  );
}

function wordsOf(link: LinkState, session: Session): string {
  const exit = session.exit.value;
  if (exit !== null) return exit.signal === null ? `exited (${exit.code})` : `ended by signal ${exit.signal}`;
  switch (link.kind) {
    case "connected":
      return "connected";
    case "connecting":
      return "connecting";
    case "waiting":
      return "connection lost, coming back";
    case "ended":
      return link.reason;
  }
}

function Actions({ session }: { session: Session }) {
  const { role, size, target } = session;
  const shared = useSignal("");
  const share = async () => {
    const made = await call<{ path: string }>("POST", `${terminalPath(target)}/share`, null, {});
    shared.value = new URL(made.path, location.origin).href;
    await copyText(shared.value);
    session.notice.value = `link for watching: ${shared.value}`;
  };
  const { cols, rows } = size.value;
  return (
    <span class="actions">
      <span class="role">{role.value === "read_only" ? "watching only" : role.value === "viewer" ? "watching" : ""}</span>
      {role.value === "viewer" && session.canWrite.value && (
        <button type="button" class="take" onClick={() => session.takeControl()}>
          Take control
        </button>
      )}
      <span class="size">
        {cols}×{rows}
      </span>
      <button type="button" title="Ctrl+Shift+F" onClick={() => (session.isSearching.value = true)}>
        Search
      </button>
      {target.share === null && (
        <>
          <a href={`${terminalPath(target)}/recording`} download={`${target.terminal}.cast`}>
            Recording
          </a>
          {role.value !== "read_only" && (
            <button type="button" onClick={() => void share()}>
              Share
            </button>
          )}
        </>
      )}
    </span>
  );
}

function SearchBar({ session }: { session: Session }) {
  const text = useSignal("");
  const input = useRef<HTMLInputElement>(null);
  useLayoutEffect(() => input.current?.focus(), []); // at once: what is typed next is meant for it
  const close = () => {
    session.isSearching.value = false;
    session.view.search.clearDecorations();
    session.view.terminal.focus();
  };
  return (
    <search class="search">
      <input
        ref={input}
        aria-label="Search in the output"
        value={text.value}
        onInput={(event) => {
          text.value = event.currentTarget.value;
          session.view.search.findPrevious(text.value, { incremental: true });
        }}
        onKeyDown={(event) => {
          if (event.key === "Escape") close();
          if (event.key === "Enter" && event.shiftKey) session.view.search.findNext(text.value);
          else if (event.key === "Enter") session.view.search.findPrevious(text.value);
        }}
      />
      <button type="button" onClick={() => session.view.search.findPrevious(text.value)}>
        Older
      </button>
      <button type="button" onClick={() => session.view.search.findNext(text.value)}>
        Newer
      </button>
      <button type="button" onClick={close}>
        Close
      </button>
    </search>
  );
}
