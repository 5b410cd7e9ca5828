import { expect, test } from "vitest";
import { actionOf, type Key, type KeyAction } from "../src/terminal/keys";

const key = (name: string, mods: Partial<Key> = {}): Key => ({
  key: name,
  ctrlKey: false,
  shiftKey: false,
  altKey: false,
  metaKey: false,
  ...mods,
});

test.each<[string, Key, boolean, KeyAction]>([
  ["Ctrl+C interrupts", key("c", { ctrlKey: true }), false, "pass"],
  ["Ctrl+C copies what is selected", key("c", { ctrlKey: true }), true, "copy"],
  ["Ctrl+Shift+C copies", key("C", { ctrlKey: true, shiftKey: true }), false, "copy"],
  ["Ctrl+Shift+V pastes", key("V", { ctrlKey: true, shiftKey: true }), false, "paste"],
  ["Shift+Insert pastes", key("Insert", { shiftKey: true }), false, "paste"],
  ["Ctrl+Insert copies", key("Insert", { ctrlKey: true }), true, "copy"],
  ["Shift+Enter is a line feed", key("Enter", { shiftKey: true }), false, "newline"],
  ["Ctrl+Shift+F searches", key("F", { ctrlKey: true, shiftKey: true }), false, "search"],
  ["Ctrl letters are the program's", key("a", { ctrlKey: true }), true, "pass"],
  ["Ctrl+L, too", key("l", { ctrlKey: true }), true, "pass"],
])("%s", (_, pressed, selected, action) => {
  expect(actionOf(pressed, selected)).toBe(action);
});
