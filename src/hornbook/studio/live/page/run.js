// One run: what it is doing, its curves as they grow, and what people ask of it.
import { html, useEffect, useRef, useState } from "./vendor/standalone.module.js";
import { Chart } from "./chart.js";
import { Control } from "./control.js";
import { Doctor, Events, Layers, Samples, Settings } from "./tabs.js";
import { get, many, short, span, whole } from "./text.js";

const TABS = { curves: "Curves", layers: "Layers", events: "Events", samples: "Samples", settings: "Settings", doctor: "Doctor", control: "Control" };
const BAD = ["restart", "rollback", "skip", "fail", "spike", "pause", "checkpoint_damaged"], SHOWN = [...BAD, "resume", "intervention", "stop", "shorten"];
const MOST = 4000; // points of a curve after which the page asks for a thinned one

export function Run({ name }) {
  const path = "/" + encodeURIComponent(name), tab = new URLSearchParams(location.search).get("tab") ?? "curves";
  const [run, set] = useState(null), [error, fail] = useState(""), [state, beat] = useState(null);
  const [curves, draw] = useState(null), [range, zoom] = useState(null), again = useRef(0);

  useEffect(() => {
    let timer;
    const look = () => get(path).then(value => { set(value); fail(""); }, problem => fail(problem.message)).finally(() => { timer = setTimeout(look, document.hidden ? 20000 : 5000); });
    look();
    return () => clearTimeout(timer);
  }, [path]);

  useEffect(() => {
    const part = range ? `&low=${Math.max(0, Math.round(range[0]))}&high=${Math.round(range[1])}` : "";
    let stream, closed = false, kept = [];
    const read = () => get(`${path}/curves?columns=900${part}`).then(found => {
      if (closed) return;
      draw(found);
      if (range || stream) return;
      stream = new EventSource(`/api/runs${path}/live?after=${found.offset}`);
      stream.onmessage = message => {
        const news = JSON.parse(message.data);
        beat(news.state);
        if (news.again) return read();
        kept.push(...news.steps);
        if (news.steps.length) draw(before => grown(before, kept.splice(0), () => { again.current += 1; setTimeout(read, 0); }));
      };
    }, problem => { fail(problem.message); if (!closed) setTimeout(read, 5000); }); // a run that is just being made
    read();
    return () => { closed = true; stream?.close(); };
  }, [path, String(range)]);

  if (error) return html`<h1>${name}</h1><p class="problem" role="alert">${error}</p><p><a href="/">All runs</a></p>`;
  if (!run) return html`<h1>${name}</h1><p class="lead">reading</p>`;
  const now = { ...run, ...(state ? { step: state.step, tokens: state.tokens, loss: state.loss } : {}) };
  const speed = curves?.curves.tokens_per_second?.y.slice(-20).filter(Number).reduce((sum, value, _, all) => sum + value / all.length, 0);
  const left = run.status === "running" && run.total_tokens && speed ? (run.total_tokens - now.tokens) / speed : null;
  const facts = {
    step: whole(now.step), tokens: many(now.tokens) + (run.total_tokens ? ` of ${many(run.total_tokens)}` : ""), loss: short(now.loss), "bits per byte": short(run.bits_per_byte),
    "tokens/s": speed ? many(speed) : "", "time left": span(left), attempt: run.attempt > 1 ? run.attempt : "", "last sign of life": run.status === "running" || run.status === "dead" ? span(run.heartbeat_seconds) + " ago" : "",
  };
  const marks = run.events.filter(event => SHOWN.includes(event.kind)).map(event => ({ step: event.step, bad: BAD.includes(event.kind) }));
  const views = { curves: () => html`<${Curves} run=${run} found=${curves} marks=${marks} range=${range} zoom=${zoom}/>`, layers: () => html`<${Layers} path=${path}/>`, events: () => html`<${Events} run=${run}/>`,
    samples: () => html`<${Samples} run=${run}/>`, settings: () => html`<${Settings} path=${path}/>`, doctor: () => html`<${Doctor} path=${path}/>`, control: () => html`<${Control} path=${path} run=${run}/>` };
  return html`<h1>${name} <span class=${`status ${run.status}`}>${run.status}</span></h1>
    <p class="lead">${run.path}</p>
    ${run.problem && html`<p class="problem" role="alert">${run.problem}</p>`}${run.problems.map(problem => html`<p class="problem">${problem}</p>`)}
    <dl class="facts">${Object.entries(facts).map(([key, value]) => value !== "" && html`<div key=${key}><dt>${key}</dt><dd>${value}</dd></div>`)}</dl>
    ${run.total_tokens && html`<progress max=${run.total_tokens} value=${now.tokens} aria-label="share of the planned tokens"></progress>`}
    <nav class="tabs" aria-label="views of the run">${Object.entries(TABS).map(([key, title]) => html`<a key=${key} href=${`?tab=${key}`} aria-current=${key === tab ? "page" : null}>${title}</a>`)}</nav>
    ${(views[tab] ?? views.curves)()}`;
}

// The curves with new steps at their end; asks for thinned ones when there are too many points, or the run went back.
function grown(before, steps, tooMany) {
  if (!before) return before;
  const curves = { ...before.curves };
  let last = before.last, back = false;
  for (const step of steps) {
    back ||= step.step <= last;
    last = step.step;
    for (const key of Object.keys(step)) {
      if (key === "step" || key === "attempt") continue;
      const old = curves[key] ?? { x: [], y: [] };
      if (step[key] != null || curves[key]) curves[key] = { x: [...old.x, step.step], y: [...old.y, step[key]] };
    }
  }
  if (back || (curves.loss?.x.length ?? 0) > MOST) tooMany();
  return back ? before : { ...before, curves, last };
}

function Curves({ run, found, marks, range, zoom }) {
  if (!found) return html`<p class="lead">reading</p>`;
  const { curves } = found, of = (key, name) => curves[key] ? [{ ...curves[key], name }] : [];
  const held = run.held_out.loss ? [{ ...run.held_out.loss, name: "held out", colour: 1, points: true }] : [];
  const waits = curves.data_seconds && curves.seconds ? [{ x: curves.seconds.x, y: share(curves) }] : [];
  const charts = [
    ["training loss", [...of("loss", "every step"), ...held], {}],
    ["gradient norm", of("gradient_norm"), { logarithmic: true }], ["learning rate", of("lr").map(each => ({ ...each, plain: true })), {}], ["tokens per second", of("tokens_per_second"), {}],
    ...Object.entries(run.held_out).filter(([key]) => key !== "loss").map(([key, points]) => [key.replaceAll("_", " ") + ", held out", [{ ...points, points: true, colour: 1 }], {}]),
    ["share of a step that waits for data", waits, {}],
  ];
  if (!found.points) return html`<p>No step is recorded yet.</p>`;
  return html`<p class="bar"><span>Drag over a curve to look closer, double-click to see all again.</span>
      ${range && html`<button onClick=${() => zoom(null)}>All steps</button>`}
      ${found.every > 1 && html`<span>About one step in ${whole(found.every)} is drawn: look closer for every step.</span>`}
      ${found.damaged > 0 && html`<span class="problem">${whole(found.damaged)} lines of metrics.jsonl are damaged and left out: hornbook doctor says more</span>`}
      ${run.plan && html`<span>Planned ${short(run.plan.predicted_bytes / 2 ** 30, 3)} GiB and ${span(run.plan.predicted_seconds)} a step, measured ${short(run.plan.measured_bytes / 2 ** 30, 3)} GiB and ${span(run.plan.measured_seconds)}.</span>`}</p>
    <div class="charts">${charts.map(([title, series, options], i) => series.length > 0 && html`<div class=${i ? "" : "first"} key=${title}><${Chart} title=${title} series=${series} marks=${marks} range=${range ?? [0, Math.max(found.last, 1)]} onZoom=${zoom} height=${i ? 210 : 320} ...${options}/></div>`)}</div>`;
}

// Both curves are thinned by themselves, so only steps that both kept have a share.
function share(curves) {
  const data = new Map(curves.data_seconds.x.map((x, i) => [x, curves.data_seconds.y[i]]));
  return curves.seconds.x.map((x, i) => data.has(x) && data.get(x) != null && curves.seconds.y[i] ? data.get(x) / curves.seconds.y[i] : null);
}
