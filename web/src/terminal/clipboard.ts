/**
 * OSC 52, with which programs (vim, tmux) reach for the clipboard: `52 ; selections ; base64`. What runs in a sandbox is not
 * trusted, so a write is only ever a request that a person grants. Reads (`?`) are never answered: they would give away what
 * was copied elsewhere. Clearing is left out: it only takes away.
 */

import type { IParser } from "@xterm/xterm";

/** Of base64. The parser of xterm.js itself drops sequences beyond 10 MB. */
export const MAX_ENCODED = 1_400_000; // a megabyte of text

/** The text a program asks to have copied; null when it asks for something else. `data` is what stands behind `52;`. */
export function wantedText(data: string): string | null {
  const [, encoded, ...more] = data.split(";");
  if (encoded === undefined || more.length > 0 || encoded.length > MAX_ENCODED) return null;
  try {
    const bytes = Uint8Array.from(atob(encoded), (character) => character.charCodeAt(0));
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes) || null;
  } catch {
    return null; // `?`, another thing that is no base64, or no UTF-8
  }
}

/** Hand on what programs want copied, but what was asked before, or of another viewer, while `isMuted()` says so. */
export function hearCopies(parser: IParser, isMuted: () => boolean, onWanted: (text: string) => void): void {
  parser.registerOscHandler(52, (data) => {
    const text = isMuted() ? null : wantedText(data);
    if (text !== null) onWanted(text);
    return true;
  });
}

// Controls but tab and line feed, and what changes the direction or is not seen at all: text must not look like other text.
const UNSEEN = /[^\P{C}\t\n]|[\u2028\u2029]/gu;

/** The beginning of a text, such that nothing in it hides: control, direction and invisible characters are spelled out. */
export function shown(text: string, limit = 400): string {
  const head = Array.from(text.slice(0, 2 * limit)).slice(0, limit).join("");
  const spelled = head.replace(UNSEEN, (character) => `\\u{${(character.codePointAt(0) ?? 0).toString(16)}}`);
  return head.length < text.length ? `${spelled}…` : spelled;
}

/** Whether it could be done: browsers let pages copy with https or on localhost, and when their user has just done something. */
export async function copyText(text: string): Promise<boolean> {
  const clipboard: Clipboard | undefined = navigator.clipboard;
  if (clipboard === undefined) return false;
  return clipboard.writeText(text).then(
    () => true,
    () => false,
  );
}
