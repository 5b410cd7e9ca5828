/** The vectors Python and TypeScript share. */

import { readFileSync } from "node:fs";

export function vectors<T>(name: string): T {
  const file = new URL(`../../tests/vectors/terminal/${name}`, import.meta.url);
  return JSON.parse(readFileSync(file, "utf-8")) as T;
}

export function bytesOf(hex: string): Uint8Array {
  return Uint8Array.from(hex.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

export function hexOf(data: Uint8Array): string {
  return Array.from(data, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
