/** Built files go where the server's package finds them. Target es2022: xterm.js#5800 breaks below it. */
import { defineConfig } from "vite";

export default defineConfig({
  base: "/ui/",
  build: {
    outDir: "../server/cloche_server/ui",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    rollupOptions: { input: "terminal.html" },
  },
});
