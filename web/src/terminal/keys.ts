/** Keys that mean something to the page and not, or not only, to the program. Pure. */

export type KeyAction = "copy" | "paste" | "search" | "newline" | "pass";

export interface Key {
  key: string;
  ctrlKey: boolean;
  shiftKey: boolean;
  altKey: boolean;
  metaKey: boolean;
}

/** Ctrl letters stay the program's: Ctrl+C copies only what is selected. */
export function actionOf(key: Key, hasSelection: boolean): KeyAction {
  if (key.altKey) return "pass";
  const letter = key.key.toLowerCase();
  if (key.ctrlKey && key.shiftKey && letter === "c") return "copy";
  if (key.ctrlKey && key.shiftKey && letter === "v") return "paste";
  if (key.ctrlKey && key.shiftKey && letter === "f") return "search";
  if (key.ctrlKey && !key.shiftKey && letter === "c") return hasSelection ? "copy" : "pass";
  if (key.ctrlKey && key.key === "Insert") return "copy";
  if (key.shiftKey && !key.ctrlKey && key.key === "Insert") return "paste";
  if (key.shiftKey && !key.ctrlKey && key.key === "Enter") return "newline";
  return "pass";
}
