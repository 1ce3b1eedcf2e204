// Builds the bundle for browsers: one file without imports. `--check` only says whether the one in the tree is current.
import { readFile, writeFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const packages = process.env.HEADRACE_NODE_PACKAGES; // where packages are, if not beside this file
const { outputFiles } = await build({
  entryPoints: [here("src/index.js")],
  absWorkingDir: here("."),
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2024",
  platform: "browser",
  legalComments: "none",
  alias: { util: here("src/browser/util.js") },
  nodePaths: packages ? [`${packages}/node_modules`] : [],
  banner: { js: "// Headrace's client for browsers, built from src by build.mjs. It contains avsc and buffer (MIT)." },
  write: false,
});
const built = outputFiles[0].text;
const target = here("dist/headrace.js");
if (process.argv.includes("--check")) {
  const present = await readFile(target, "utf8").catch(() => "");
  if (present !== built) throw new Error("dist/headrace.js is not what src makes; run `make client`");
} else {
  await writeFile(target, built);
}
console.log(`${built.length} bytes`);
