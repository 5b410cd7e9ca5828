/** The few calls of the HTTP API that the page makes. Credentials: the session's cookie, or the token of a link. */

export interface Target {
  sandbox: string;
  terminal: string;
  share: string | null;
}

export interface TerminalInfo {
  id: string;
  state: string;
  argv: string[];
  recorded: boolean;
}

export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** From the address of the page: `?sandbox=&terminal=`, and `#share=` of a link. */
export function targetOf(address: URL): { sandbox: string | null; terminal: string | null; share: string | null } {
  const share = new URLSearchParams(address.hash.slice(1)).get("share");
  return { sandbox: address.searchParams.get("sandbox"), terminal: address.searchParams.get("terminal"), share };
}

export function terminalPath(target: Target): string {
  return `/v1/sandboxes/${encodeURIComponent(target.sandbox)}/terminals/${encodeURIComponent(target.terminal)}`;
}

export function openSocket(target: Target): WebSocket {
  const address = `${location.origin.replace(/^http/, "ws")}${terminalPath(target)}/attach`;
  return new WebSocket(address, ["term.v1", ...(target.share === null ? [] : [`cloche.share.${target.share}`])]);
}

export async function call<T>(method: string, path: string, share: string | null, body?: unknown): Promise<T> {
  const answer = await fetch(path, {
    method,
    headers: {
      ...(share === null ? {} : { Authorization: `Bearer ${share}` }),
      ...(body === undefined ? {} : { "Content-Type": "application/json" }),
    },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const json: unknown = await answer.json();
  if (!answer.ok) {
    const message = typeof json === "object" && json !== null && "message" in json ? String(json.message) : "failed";
    throw new ApiError(answer.status, message);
  }
  return json as T;
}

/** Why a terminal cannot be attached to, when trying again is in vain. */
export async function diagnose(target: Target): Promise<string | null> {
  try {
    await call<TerminalInfo>("GET", terminalPath(target), target.share);
    return null;
  } catch (error) {
    if (!(error instanceof ApiError)) return null;
    return [401, 403, 404, 410].includes(error.status) ? error.message : null;
  }
}
