/** Asks whether a program may put text into the clipboard. It takes no focus: keys meant for the program must not answer. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { copyText, shown } from "../terminal/clipboard";
import type { Session } from "./session";

/** For so long the button of a new text does nothing: nobody shall copy what took the place of another just before the click. */
const ARMED_AFTER_MS = 600;

export function CopyPrompt({ session, text }: { session: Session; text: string }) {
  const armed = useSignal<string | null>(null);
  const isArmed = armed.value === text;
  useEffect(() => {
    const timer = setTimeout(() => (armed.value = text), ARMED_AFTER_MS);
    return () => clearTimeout(timer);
  }, [text, armed]);
  const close = () => {
    session.wanted.value = null;
    session.view.terminal.focus();
  };
  const copy = async () => {
    if (!isArmed) return;
    const done = await copyText(text);
    close();
    if (!done) session.notice.value = "the browser does not let this page copy; it needs https or localhost";
  };
  return (
    <section class="copy-prompt" aria-label="Clipboard">
      <p role="status">
        The program wants to copy {text.length} characters to your clipboard:
      </p>
      <pre>{shown(text)}</pre>
      <button type="button" aria-disabled={!isArmed} onClick={() => void copy()}>
        Copy
      </button>
      <button type="button" onClick={close}>
        Do not copy
      </button>
    </section>
  );
}
