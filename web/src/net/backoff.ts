/** When to try again. Pure: randomness is passed in. */

const PAUSES_S = [0, 0.5, 1, 2, 4, 8, 15] as const;

/** Close codes after which a client does not come back; see docs/terminals.md. */
const FINAL: ReadonlyMap<number, string> = new Map([
  [1000, "ended"],
  [1008, "the connection was refused"],
  [4001, "opened somewhere else"],
  [4004, "the terminal was deleted"],
  [4005, "the sandbox is asleep; reload to wake it"],
  [4401, "not allowed"],
]);

/** Seconds before the n-th try (from 0): at once, then longer and longer, for ever, with a fifth of jitter. */
export function pauseBefore(attempt: number, random: () => number): number {
  const pause = PAUSES_S[Math.min(attempt, PAUSES_S.length - 1)] ?? 15;
  return pause * (0.8 + 0.4 * random());
}

/** Why a close code is final; null when it is not. `said`: the reason of the close frame; the server's own have a message. */
export function finalReason(code: number, said = ""): string | null {
  return (code === 4401 ? messageIn(said) : null) ?? FINAL.get(code) ?? null;
}

function messageIn(said: string): string | null {
  try {
    const { message } = JSON.parse(said) as { message?: unknown };
    return typeof message === "string" ? message : null;
  } catch {
    return null;
  }
}
