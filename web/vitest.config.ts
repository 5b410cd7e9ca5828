import { defineConfig } from "vitest/config";

/** A minute: the five seconds of vitest are for a machine that does nothing else. */
export default defineConfig({ test: { include: ["test/*.test.ts"], testTimeout: 60_000, hookTimeout: 60_000 } });
