// Prints which explorers lack a module in the browser's Python: node missing.mjs FOLDER
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const folder = resolve(process.argv[2]);
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide/pyodide.mjs`));
const python = await loadPyodide({ indexURL: `${folder}/pyodide/` });
const files = new Uint8Array(readFileSync(`${folder}/python.zip`));
python.unpackArchive(files, "zip", { extractDir: "/lib/python3.14/site-packages" });
console.log(python.pyimport("replies").missing_modules());
