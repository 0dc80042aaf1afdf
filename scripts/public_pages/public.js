// The page of `hornbook watch` without a server: files answer what no question changes, a worker with Python the rest.
import { site } from "./page/text.js";

const files = new Map(); // path -> the promise of its JSON
const [status] = document.querySelectorAll("#computed [role=status]"), megabytes = bytes => (bytes / 1e6).toFixed(1);
const total = Number(document.getElementById("computed").dataset.bytes);
const waiting = new Map(); // path without question -> the newest question: earlier ones are not answered
let worker, current = null;

async function read(path) {
  const found = await fetch(path.slice(1) + ".json");
  if (!found.ok) throw new Error(`there is no page ${path.split("/").slice(2).join("/")}`);
  return found.json();
}

function start() {
  worker = new Worker("worker.js", { type: "module" });
  worker.onerror = event => current?.fail(new Error(`Python does not start here: ${event.message || "worker.js cannot be loaded"}`));
  worker.onmessage = ({ data: { loaded, reply } }) => {
    if (reply == null) { status.textContent = loaded < total ? `Loading Python, once: ${megabytes(loaded)} of ${megabytes(total)} MB.` : "Starting Python."; return; }
    status.textContent = "";
    const { done, fail } = current, value = JSON.parse(reply);
    current = null;
    if (value.error) fail(new Error(value.error)); else done(value);
    next();
  };
}

function next() {
  if (current || !waiting.size) return;
  const [route, question] = waiting.entries().next().value;
  waiting.delete(route);
  current = question;
  if (!worker) start();
  worker.postMessage({ path: question.path, body: question.body });
}

Object.assign(site, {
  ask: async (path, options = {}) => {
    const route = path.split("?")[0], asks = /^(.*)\/(answer|further)$/.exec(route), file = asks ? asks[1] : route;
    if (!files.has(file)) files.set(file, read(file));
    const about = await files.get(file);
    if (!asks) return about;
    if (about.needs) throw new Error(about.needs);
    return new Promise((done, fail) => { waiting.set(route, { path, body: options.body ?? "", done, fail }); next(); });
  },
  link: path => "#" + path,
  place: () => new URL(location.hash.length > 2 ? location.hash.slice(1) : "/explore", location.origin),
  runs: false,
});
addEventListener("hashchange", () => scrollTo(0, 0));
await import("./page/main.js");
