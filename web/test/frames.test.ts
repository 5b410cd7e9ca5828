import { describe, expect, test } from "vitest";
import { decodeFrame, encodeFrame, FrameType } from "../src/protocol/frames";
import { bytesOf, hexOf, vectors } from "./vectors";

interface Vectors {
  good: { name: string; type: keyof typeof FrameType; offset: number; payload: string; frame: string }[];
  bad: { name: string; frame: string }[];
}

const { good, bad } = vectors<Vectors>("frames.json");

describe("frames", () => {
  test.each(good)("$name", ({ type, offset, payload, frame }) => {
    expect(hexOf(encodeFrame(FrameType[type], offset, bytesOf(payload)))).toBe(frame);
    const decoded = decodeFrame(bytesOf(frame));
    expect([decoded.type, decoded.offset, hexOf(decoded.payload)]).toEqual([FrameType[type], offset, payload]);
  });

  test.each(bad)("no frame: $name", ({ frame }) => {
    expect(() => decodeFrame(bytesOf(frame))).toThrow();
  });
});
