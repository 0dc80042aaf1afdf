// The views of a run besides its curves.
import { html, useEffect, useRef, useState } from "./vendor/standalone.module.js";
import { clock, get, short, whole } from "./text.js";

function useAnswer(path) {
  const [found, set] = useState({});
  useEffect(() => { get(path).then(value => set({ value }), problem => set({ error: problem.message })); }, [path]);
  return found;
}

const Waiting = ({ error, text = "reading" }) => error ? html`<p class="problem" role="alert">${error}</p>` : html`<p class="lead">${text}</p>`;

export function Events({ run }) {
  const kinds = [...new Set(run.events.map(event => event.kind))].sort(), [only, choose] = useState("");
  const rows = run.events.filter(event => !only || event.kind === only).reverse();
  return html`<p class="lead">The run's ledger, newest first: everything that it did besides training, and why.</p>
    <p class="bar"><label>kind <select value=${only} onChange=${event => choose(event.target.value)}><option value="">all</option>${kinds.map(kind => html`<option key=${kind} value=${kind}>${kind}</option>`)}</select></label>
    ${run.more_events > 0 && html`<span>${whole(run.more_events)} older ones are not shown: hornbook runs show prints them.</span>`}</p>
    <div class="wide"><table><thead><tr><th class="optional">when</th><th class="number">step</th><th class="number optional">attempt</th><th>what</th><th>more</th></tr></thead><tbody>${rows.map(event => html`<tr>
      <td class="when optional">${clock(event.time)}</td><td class="number">${whole(event.step)}</td><td class="number optional">${event.attempt}</td><td>${event.kind}</td>
      <td class="wrap">${Object.entries(event.facts).map(([key, value]) => `${key} ${typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? short(value, 5) : value}`).join(", ")}</td></tr>`)}</tbody></table></div>`;
}

export function Samples({ run }) {
  if (!run.samples.length) return html`<p>There are no samples yet: a run writes one at each evaluation (eval.prompt).</p>`;
  return html`<p class="lead">What the model writes, newest first. Does it get better?</p>${run.samples.map(sample => html`<section class="panel" key=${sample.name}><h2>${sample.name}</h2><pre>${sample.text}</pre></section>`)}`;
}

export function Settings({ path }) {
  const { value, error } = useAnswer(path + "/settings"), [words, search] = useState(""), [all, show] = useState(false);
  if (!value) return html`<${Waiting} error=${error}/>`;
  const rows = value.settings.filter(row => (all || row.origin !== "default") && (row.key + row.value).includes(words));
  return html`<p class="lead">Every setting of the run and where it came from. What was chosen here, and what is a default?</p>
    <p class="bar"><label>search <input type="search" value=${words} onInput=${event => search(event.target.value)}/></label><label><input type="checkbox" checked=${all} onChange=${() => show(!all)}/> defaults too</label></p>
    <div class="wide"><table><thead><tr><th>setting</th><th>value</th><th>origin</th></tr></thead><tbody>${rows.map(row => html`<tr key=${row.key}><td>${row.key}</td><td class="wrap">${row.value}</td><td>${row.origin}</td></tr>`)}</tbody></table></div>
    ${rows.length === 0 && html`<p>No setting fits.</p>`}`;
}

export function Doctor({ path }) {
  const { value, error } = useAnswer(path + "/doctor");
  if (!value) return html`<${Waiting} error=${error} text="reading the whole run"/>`;
  return html`<p class="lead">What hornbook doctor finds in the records of this run, and what to do about it.</p>
    ${value.findings.length === 0 && html`<div class="finding ok">Nothing is wrong.</div>`}
    ${value.findings.map(each => html`<div class=${`finding ${each.severity}`} key=${each.name}><h2>${each.name.replaceAll("_", " ")}</h2>${["evidence", "cause", "remedy"].map(key => each[key] && html`<p>${key === "evidence" ? "" : key + ": "}${each[key]}</p>`)}</div>`)}
    <p><strong>Convergence: ${value.convergence.verdict}.</strong> ${value.convergence.text}</p><pre>${value.story.join("\n")}</pre>`;
}

const NAMES = { gradient_norm: "gradient norm", weight_norm: "weight norm", update_ratio: "update over weight", activation_rms: "activation size" };

const STOPS = [[38, 30, 87], [49, 96, 139], [41, 145, 140], [122, 199, 97], [250, 230, 60]]; // dark to bright, in an order that all eyes see

function shade(share) {
  const place = share * (STOPS.length - 1), first = Math.min(Math.floor(place), STOPS.length - 2);
  return `rgb(${STOPS[first].map((from, i) => Math.round(from + (place - first) * (STOPS[first + 1][i] - from)))})`;
}

export function Layers({ path }) {
  const { value, error } = useAnswer(path + "/layers"), [kind, choose] = useState("gradient_norm"), place = useRef(), [said, say] = useState("");
  const rows = value?.statistics[kind];
  const logs = rows?.map(row => row.map(each => each > 0 ? Math.log10(each) : null));
  const flat = logs?.flat().filter(each => each != null) ?? [], low = Math.min(...flat), high = Math.max(...flat);
  useEffect(() => {
    if (!rows) return;
    const canvas = place.current, context = canvas.getContext("2d");
    canvas.width = rows.length; canvas.height = value.layers.length;
    logs.forEach((row, x) => row.forEach((each, y) => {
      const share = each == null ? 0 : (each - low) / (high - low || 1);
      context.fillStyle = each == null ? "#888" : shade(share);
      context.fillRect(x, y, 1, 1);
    }));
  }, [rows, kind]);
  if (!value) return html`<${Waiting} error=${error}/>`;
  if (!value.layers.length) return html`<p>No statistics of layers are recorded (log.layers_every).</p>`;
  const height = 16 * value.layers.length + "px";
  const point = event => {
    const box = place.current.getBoundingClientRect(), x = Math.min(rows.length - 1, Math.floor((event.clientX - box.left) / box.width * rows.length));
    const y = Math.min(value.layers.length - 1, Math.floor((event.clientY - box.top) / box.height * value.layers.length));
    say(`step ${whole(value.steps[x])}, ${value.layers[y]}: ${short(rows[x][y])}`);
  };
  return html`<p class="lead">Each row is a layer, from the embedding down to the last one; time goes to the right; bright is large (logarithmic, ${short(10 ** low, 2)} to ${short(10 ** high, 2)}). Does one layer stand out?</p>
    <p class="bar"><label>statistic <select value=${kind} onChange=${event => choose(event.target.value)}>${Object.keys(value.statistics).map(key => html`<option key=${key} value=${key}>${NAMES[key] ?? key.replaceAll("_", " ")}</option>`)}</select></label><span>${said}</span></p>
    <div class="layers"><div style=${{ height }}>${value.layers.map(layer => html`<span key=${layer}>${layer}</span>`)}</div><canvas class="strip" ref=${place} style=${{ height }} role="img" aria-label=${`${NAMES[kind] ?? kind} of ${value.layers.length} layers over ${rows?.length} moments`} onPointerMove=${point}></canvas></div>
    <details><summary>newest values as a table</summary><table><tbody>${value.layers.map((layer, i) => html`<tr key=${layer}><td>${layer}</td><td class="number">${short(rows?.at(-1)[i])}</td></tr>`)}</tbody></table></details>`;
}
