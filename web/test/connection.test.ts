import { beforeEach, describe, expect, test } from "vitest";
import { finalReason, pauseBefore } from "../src/net/backoff";
import { Connection, type LinkState, PING_S, PROBE_S, type SocketLike } from "../src/net/connection";

class FakeSocket implements SocketLike {
  binaryType = "";
  onopen: (() => void) | null = null;
  onmessage: ((event: { data: unknown }) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  readyState = 1;
  sent: unknown[] = [];
  closed = false;
  send(data: string | Uint8Array): void {
    this.sent.push(data);
  }
  close(): void {
    this.closed = true;
  }
}

let sockets: FakeSocket[];
let states: LinkState[];
let timers: { at: number; work: () => void }[];
let now: number;
let visible: boolean;
let diagnosis: string | null;
let connection: Connection;

function pass(seconds: number): void {
  now += seconds;
  for (const timer of timers.filter(({ at }) => at <= now)) {
    timers = timers.filter((other) => other !== timer);
    timer.work();
  }
}

const settle = () => new Promise<void>((resolve) => setTimeout(resolve, 0));
const last = () => sockets[sockets.length - 1] as FakeSocket;

beforeEach(() => {
  [sockets, states, timers, now, visible, diagnosis] = [[], [], [], 0, true, null];
  connection = new Connection(
    {
      open: () => {
        sockets.push(new FakeSocket());
        return last();
      },
      diagnose: () => Promise.resolve(diagnosis),
      now: () => now,
      random: () => 0.5,
      after: (seconds, work) => {
        const timer = { at: now + seconds, work };
        timers.push(timer);
        return () => {
          timers = timers.filter((other) => other !== timer);
        };
      },
      isVisible: () => visible,
    },
    { onOpen: () => undefined, onMessage: () => undefined, onLost: () => undefined, onState: (s) => states.push(s) },
  );
  connection.start();
});

describe("a connection", () => {
  test("comes back at once, then later and later, for ever", async () => {
    const pauses: number[] = [];
    for (let n = 0; n < 12; n += 1) {
      last().onclose?.({ code: 1006, reason: "" });
      await settle();
      const state = states[states.length - 1];
      pauses.push(state?.kind === "waiting" ? state.retryAt - now : -1);
      pass(20);
    }
    expect(pauses.slice(0, 7)).toEqual([0, 0.5, 1, 2, 4, 8, 15]);
    expect(sockets).toHaveLength(13);
  });

  test("starts over with its pauses once it was settled", async () => {
    for (const code of [1006, 1006]) {
      last().onclose?.({ code, reason: "" });
      await settle();
      pass(20);
    }
    last().onopen?.();
    connection.settled();
    last().onclose?.({ code: 1006, reason: "" });
    await settle();
    expect(states[states.length - 1]).toEqual({ kind: "waiting", retryAt: now });
  });

  test.each([1000, 1008, 4001, 4004, 4005, 4401])("ends with %i", async (code) => {
    last().onopen?.();
    last().onclose?.({ code, reason: "" });
    await settle();
    expect(states[states.length - 1]?.kind).toBe("ended");
    pass(100);
    expect(sockets).toHaveLength(1);
  });

  test("ends when the upgrade was refused for good", async () => {
    diagnosis = "the terminal was deleted";
    last().onclose?.({ code: 1006, reason: "" });
    await settle();
    expect(states[states.length - 1]).toEqual({ kind: "ended", reason: diagnosis });
  });

  test("that is closing is not written to", () => {
    last().onopen?.();
    connection.send("before");
    last().readyState = 2;
    connection.send("behind");
    expect(last().sent).toEqual(["before"]);
  });

  test("that is silent is given up while somebody looks", async () => {
    last().onopen?.();
    pass(PING_S);
    expect(last().sent).toHaveLength(1);
    pass(PROBE_S);
    await settle();
    expect(states[states.length - 1]?.kind).toBe("waiting");
  });

  test("that answers is kept", () => {
    last().onopen?.();
    pass(PING_S);
    last().onmessage?.({ data: '{"type":"pong","n":0}' });
    pass(PROBE_S);
    expect(last().closed).toBe(false);
  });

  test("of a hidden page concludes nothing from silence", () => {
    visible = false;
    last().onopen?.();
    pass(PING_S * 4);
    expect(last().sent).toHaveLength(0);
    expect(last().closed).toBe(false);
  });
});

test("jitter is a fifth, and other close codes are not final", () => {
  expect(pauseBefore(3, () => 0)).toBeCloseTo(1.6);
  expect(pauseBefore(3, () => 1)).toBeCloseTo(2.4);
  expect(finalReason(4401, '{"code":"unauthenticated","message":"the link was revoked"}')).toBe("the link was revoked");
  expect(["", "x", "{}", "null", '{"message":1}'].map((said) => finalReason(4401, said))).toEqual(
    Array(5).fill("not allowed"),
  );
  expect([1001, 1006, 1011, 1012, 1013].map((code) => finalReason(code))).toEqual([null, null, null, null, null]);
});
