// Python in the browser: Pyodide, with hornbook's own files, answers one question after the other.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const whole = self.fetch;
let loaded = 0;
self.fetch = async (...wanted) => { // Pyodide's own fetches too: the page shows how much has arrived
  const { body, headers, status } = await whole(...wanted);
  const count = new TransformStream({
    transform(part, to) {
      loaded += part.length;
      postMessage({ loaded });
      to.enqueue(part);
    },
  });
  return new Response(body.pipeThrough(count), { headers, status });
};

async function start() {
  const files = fetch("python.zip").then(found => found.arrayBuffer());
  const python = await loadPyodide({ indexURL: "./pyodide/" });
  python.unpackArchive(await files, "zip", { extractDir: "/lib/python3.14/site-packages" });
  return python.pyimport("replies").reply;
}

const ready = start();
onmessage = async ({ data: { path, body } }) => {
  try {
    postMessage({ reply: (await ready)(path, body) });
  } catch (error) {
    postMessage({ reply: JSON.stringify({ error: `Python does not run here: ${error.message.slice(-500)}` }) });
  }
};
