/** When to try again. Pure: randomness is passed in. */

const PAUSES_S = [0, 0.5, 1, 2, 4, 8, 15] as const;

/** Close codes after which a client does not come back; see docs/terminals.md. */
const FINAL: ReadonlyMap<number, string> = new Map([
  [1000, "ended"],
  [1008, "the connection was refused"],
  [4001, "opened somewhere else"],
  [4004, "the terminal was deleted"],
  [4401, "not allowed"],
]);

/** Seconds before the n-th try (from 0): at once, then longer and longer, for ever, with a fifth of jitter. */
export function pauseBefore(attempt: number, random: () => number): number {
  const pause = PAUSES_S[Math.min(attempt, PAUSES_S.length - 1)] ?? 15;
  return pause * (0.8 + 0.4 * random());
}

/** Why a close code is final; null when it is not. */
export function finalReason(code: number): string | null {
  return FINAL.get(code) ?? null;
}
