/**
 * Binary frames of `term.v1`: a type byte, an offset of eight bytes (big-endian), the payload.
 * The twin of sdk/cloche/terminal_frames.py; tests/vectors/terminal/frames.json holds both to one meaning.
 */

export const FrameType = { OUTPUT: 1, PREAMBLE: 2, INPUT: 3 } as const;
export type FrameType = (typeof FrameType)[keyof typeof FrameType];

export const HEADER_BYTES = 9;

export class FrameError extends Error {}

export interface Frame {
  readonly type: FrameType;
  readonly offset: number;
  readonly payload: Uint8Array;
}

export function encodeFrame(type: FrameType, offset: number, payload: Uint8Array): Uint8Array<ArrayBuffer> {
  const data = new Uint8Array(HEADER_BYTES + payload.length);
  const view = new DataView(data.buffer);
  view.setUint8(0, type);
  view.setBigUint64(1, BigInt(offset));
  data.set(payload, HEADER_BYTES);
  return data;
}

export function decodeFrame(data: Uint8Array): Frame {
  if (data.length < HEADER_BYTES) throw new FrameError(`a frame has at least ${HEADER_BYTES} bytes, not ${data.length}`);
  const view = new DataView(data.buffer, data.byteOffset, data.length);
  const type = view.getUint8(0);
  if (type !== FrameType.OUTPUT && type !== FrameType.PREAMBLE && type !== FrameType.INPUT) {
    throw new FrameError(`there is no frame type ${type}`);
  }
  const offset = Number(view.getBigUint64(1));
  if (!Number.isSafeInteger(offset)) throw new FrameError(`the offset ${offset} is too large`);
  return { type, offset, payload: data.subarray(HEADER_BYTES) };
}
