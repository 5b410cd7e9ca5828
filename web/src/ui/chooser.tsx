/** Without a terminal in the address: a new one in the sandbox, or the sandboxes to choose from. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { call, type TerminalInfo } from "../net/api";

interface SandboxInfo {
  id: string;
  name: string | null;
  image: string;
}

export function Chooser({ sandbox }: { sandbox: string | null }) {
  const words = useSignal("");
  const found = useSignal<SandboxInfo[]>([]);
  useEffect(() => {
    const work = sandbox === null ? listSandboxes().then((items) => (found.value = items)) : openNew(sandbox);
    work.catch((error: unknown) => (words.value = error instanceof Error ? error.message : String(error)));
  }, [sandbox, found, words]);
  return (
    <main class="chooser">
      <h1>Terminals</h1>
      <p role="status">{words.value}</p>
      <ul>
        {found.value.map((item) => (
          <li key={item.id}>
            <a href={`?sandbox=${item.id}`}>{item.name ?? item.id}</a> {item.image}
          </li>
        ))}
      </ul>
    </main>
  );
}

async function listSandboxes(): Promise<SandboxInfo[]> {
  return (await call<{ items: SandboxInfo[] }>("GET", "/v1/sandboxes?state=running", null)).items;
}

/** The address then names it, so that a reload comes back to it. */
async function openNew(sandbox: string): Promise<void> {
  const made = await call<TerminalInfo>("POST", `/v1/sandboxes/${encodeURIComponent(sandbox)}/terminals`, null, {});
  location.replace(`?sandbox=${encodeURIComponent(sandbox)}&terminal=${made.id}`);
}
