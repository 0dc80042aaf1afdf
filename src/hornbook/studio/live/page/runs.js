// The table of runs, and the comparison of some of them.
import { html, useEffect, useState } from "./vendor/standalone.module.js";
import { Chart, Spark, colourOf } from "./chart.js";
import { get, many, short, span, whole } from "./text.js";

export function Runs() {
  const [found, set] = useState(null), [error, fail] = useState(""), [chosen, choose] = useState([]);
  useEffect(() => {
    let timer;
    const look = () => get("").then(value => { set(value); fail(""); }, problem => fail(problem.message)).finally(() => { timer = setTimeout(look, document.hidden ? 15000 : 3000); });
    look();
    return () => clearTimeout(timer);
  }, []);
  if (error) return html`<p class="problem" role="alert">${error}</p>`;
  if (!found) return html`<p class="lead">reading</p>`;
  const toggle = name => choose(chosen.includes(name) ? chosen.filter(each => each !== name) : [...chosen, name]);
  return html`<h1>Runs</h1>
    <p class="lead">Every run in the folders that this page was started with. Which of them trains, which died, and how far did each come?</p>
    ${found.runs.length === 0 && html`<p>There is no run yet: <code>hornbook train tiny</code> makes one, and it appears here.</p>`}
    <div class="wide"><table><thead><tr><th><span class="hidden">compare</span></th><th>run</th><th>status</th><th class="number">step</th><th class="number optional">tokens</th><th class="number">done</th>
      <th class="number">loss</th><th>course</th><th class="number optional">bits per byte, held out</th><th class="number optional">last sign of life</th></tr></thead>
    <tbody>${found.runs.map(run => html`<tr key=${run.name}>
      <td><input type="checkbox" aria-label=${`compare ${run.name}`} checked=${chosen.includes(run.name)} onChange=${() => toggle(run.name)}/></td>
      <td class="wrap"><a href=${`/run/${encodeURIComponent(run.name)}`}>${run.name}</a>${run.problem && html`<div class="problem">${run.problem}</div>`}</td>
      <td><span class=${`status ${run.status}`}>${run.status}</span></td><td class="number">${whole(run.step)}</td><td class="number optional">${many(run.tokens)}</td>
      <td class="number">${run.done == null ? "" : Math.floor(100 * run.done) + " %"}</td><td class="number">${short(run.loss)}</td>
      <td><${Spark} values=${run.spark} label=${`loss from ${short(run.spark[0])} to ${short(run.spark.at(-1))}`}/></td>
      <td class="number optional">${short(run.bits_per_byte)}</td><td class="number optional">${run.heartbeat_seconds == null ? "" : span(run.heartbeat_seconds) + " ago"}</td></tr>`)}</tbody></table></div>
    ${chosen.length > 1 && html`<p><a href=${`/compare?${chosen.map(name => "run=" + encodeURIComponent(name)).join("&")}`}>Compare these ${chosen.length} runs</a></p>`}`;
}

export function Compare() {
  const names = new URLSearchParams(location.search).getAll("run");
  const [found, set] = useState(null), [error, fail] = useState(""), [range, zoom] = useState(null);
  useEffect(() => {
    const part = range ? `&low=${Math.round(range[0])}&high=${Math.round(range[1])}` : "";
    Promise.all(names.map(async name => {
      const path = "/" + encodeURIComponent(name);
      const [run, curves, rows] = await Promise.all([get(path), get(`${path}/curves?columns=800${part}`), get(path + "/settings")]);
      return { name, run, curves: curves.curves, settings: Object.fromEntries(rows.settings.map(row => [row.key, row.value])) };
    })).then(set, problem => fail(problem.message));
  }, [String(range)]);
  if (error) return html`<p class="problem" role="alert">${error}</p>`;
  if (!found) return html`<p class="lead">reading</p>`;
  const keys = [...new Set(found.flatMap(each => Object.keys(each.settings)))].filter(key => new Set(found.map(each => each.settings[key])).size > 1);
  const of = key => found.flatMap((each, i) => each.curves[key] ? [{ ...each.curves[key], name: each.name, colour: i, plain: found.length > 3 || key === "lr" }] : []);
  const titles = [["loss", "training loss"], ["gradient_norm", "gradient norm"], ["lr", "learning rate"], ["tokens_per_second", "tokens per second"]];
  return html`<h1>Comparison</h1><p class="lead">The same curves of ${names.length} runs, and the settings that differ. Which change made the difference?</p>
    <div class="charts">${titles.map(([key, title], i) => of(key).length > 0 && html`<div class=${i ? "" : "first"} key=${key}><${Chart} title=${title} series=${of(key)} range=${range} onZoom=${zoom} height=${i ? 210 : 320} logarithmic=${key === "gradient_norm"}/></div>`)}</div>
    <h2>Settings that differ</h2><div class="wide"><table><thead><tr><th>setting</th>${found.map((each, i) => html`<th style=${{ color: colourOf(i) }}>${each.name}</th>`)}</tr></thead>
      <tbody>${keys.map(key => html`<tr key=${key}><td>${key}</td>${found.map(each => html`<td class="wrap">${each.settings[key] ?? ""}</td>`)}</tr>`)}</tbody></table></div>
    ${keys.length === 0 && html`<p>None: the recipes are equal.</p>`}`;
}
