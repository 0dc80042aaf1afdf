// An explorer: controls made from its question, its answer drawn by views.js, a link that holds the state.
import { html, useEffect, useRef, useState } from "./vendor/standalone.module.js";
import { prose, View } from "./views.js";
import { fetched, posted, short, site } from "./text.js";

const FOLDERS = { tools: "Explorers", widgets: "Small calculators" };

export function Explorers() {
  const [found, set] = useState(null), [error, fail] = useState("");
  useEffect(() => { fetched("/api/explore").then(value => set(value.explorers), problem => fail(problem.message)); }, []);
  if (error) return html`<p class="problem" role="alert">${error}</p>`;
  if (!found) return html`<p class="lead">reading</p>`;
  return html`<h1>Explore</h1><p class="lead">What does a setting do? Change it here and see, before anything is trained. Every number is computed by the functions that train and plan your runs.</p>
    ${Object.entries(FOLDERS).map(([folder, title]) => html`<section key=${folder}><h2>${title}</h2><ul class="cards">${found.filter(each => each.folder === folder).map(each =>
      html`<li key=${each.name}><a href=${site.link(`/explore/${each.name}`)}>${each.title}</a><span>${each.asks}${each.needs && " On your machine only."}</span></li>`)}</ul></section>`)}`;
}

const query = values => new URLSearchParams(Object.entries(values).map(([key, value]) => [key, Array.isArray(value) ? value.join(",") : String(value)])).toString();

const LONG = 2000; // characters of a value that no link holds
const asked = (path, values) => { const text = query(values); return text.length < LONG ? fetched(`${path}?${text}`) : posted(path, values); };

export function Explorer({ name }) {
  const path = `/api/explore/${encodeURIComponent(name)}`;
  const [about, set] = useState(null), [values, change] = useState(Object.fromEntries(site.place().searchParams));
  const [found, show] = useState(null), [error, fail] = useState(""), [measured, measure] = useState(null), [further, add] = useState(null), turn = useRef(0);

  useEffect(() => { fetched(path).then(set, problem => fail(problem.message)); }, [path]);
  useEffect(() => {
    const mine = ++turn.current, text = query(Object.fromEntries(Object.entries(values).filter(([, value]) => String(value).length < LONG)));
    history.replaceState(null, "", site.link(site.place().pathname + (text ? "?" + text : "")));
    asked(`${path}/answer`, values).then(value => { if (mine === turn.current) { show(value); fail(""); } }, problem => { if (mine === turn.current) fail(problem.message); });
  }, [path, query(values)]);

  useEffect(() => {
    if (!about?.has_further) return;
    add(null);
    let left = false;
    const timer = setTimeout(() => asked(`${path}/further`, values).then(value => left || add(value.answer), () => {}), 250);
    return () => { left = true; clearTimeout(timer); };
  }, [about, query(values)]);

  if (!about) return html`<h1>${name}</h1><p class=${error ? "problem" : "lead"}>${error || "reading"}</p>`;
  const opening = html`<p class="crumb"><a href=${site.link("/explore")}>Explore</a></p><h1>${about.title}</h1><p class="asks">${about.asks}</p><p class="lead">${prose(about.lead)}</p>`;
  if (about.needs) return html`${opening}<p class="panel">${prose(about.needs)}</p>`;
  const now = { ...Object.fromEntries(about.controls.map(each => [each.name, each.default])), ...found?.question, ...values };
  const put = (key, value) => { measure(null); change(key === null ? value : { ...values, [key]: value }); };
  return html`${opening}
    <details class="words"><summary>Words on this page</summary><dl>${Object.entries(about.words).map(([term, meaning]) => html`<dt key=${term}>${term}</dt><dd>${prose(meaning)}</dd>`)}</dl></details>
    <div class="explorer"><form class="controls" aria-label="settings" onSubmit=${event => event.preventDefault()}>
      <div class="presets">${about.presets.map(each => html`<button type="button" key=${each.name} title=${each.source} onClick=${() => put(null, each.values)}>${each.name}</button>`)}
        ${about.loads && html`<${Load} path=${path} put=${value => put(null, value)} fail=${fail}/>`}</div>
      ${about.controls.map(each => html`<${Control} key=${each.name} control=${each} value=${now[each.name]} put=${value => put(each.name, value)}/>`)}
      <div class="presets"><button type="button" onClick=${() => put(null, {})}>Start again</button></div>
    </form>
    <div class="answer" aria-live="polite" aria-busy=${!found}>
      ${error && html`<p class="problem" role="alert">${error}</p>`}
      ${found && Object.entries(found.answer).map(([key, view]) => view && html`<${View} key=${key} view=${view}/>`)}
      ${further && Object.entries(further).map(([key, view]) => view && html`<${View} key=${key} view=${view}/>`)}
      ${!found && !error && html`<p class="note">computing</p>`}
      ${about.has_further && found && !further && !error && html`<p class="note">comparing</p>`}
      ${about.measures && html`<${Measure} path=${path} values=${values} found=${measured} set=${measure}/>`}
      ${found && html`<section class="panel"><h2>Take it with you</h2>
        <${Copy} title="Command" text=${found.command}/>${found.toml && html`<${Copy} title="Settings of a recipe" text=${found.toml}/>`}
        <p class="note">Computed by ${about.places.map((each, i) => html`${i ? ", " : ""}<code title=${each.file}>${each.name}</code> (${each.file.split("/").slice(-1)[0]}:${each.line})`)}.</p></section>`}
    </div></div>`;
}

// A number as people type it, without loss: 1G, 32.5k, 0.0003; the server reads the suffixes.
function shortest(value) {
  const number = Number(value);
  if (!isFinite(number) || Math.abs(number) < 1e5) return value;
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (number >= size) {
    const text = String(number / size);
    return text.length < 8 ? text + unit : value;
  }
  return value;
}

// Equal ways of a logarithmic slider are equal factors, rounded to two digits.
function Control({ control, value, put }) {
  const id = `c-${control.name}`, { kind, low, high, logarithmic } = control;
  const label = html`<label for=${id}>${control.label}</label>`, help = html`<span class="help" id=${id + "-help"}>${prose(control.help)}</span>`;
  const read = event => put(event.target.value);
  if (kind === "switch") return html`<div class="control"><div class="line"><input id=${id} type="checkbox" checked=${String(value) === "true"} aria-describedby=${id + "-help"} onChange=${event => put(event.target.checked)}/>${label}</div>${help}</div>`;
  if (kind === "choice") return html`<div class="control">${label}<select id=${id} value=${value} aria-describedby=${id + "-help"} onChange=${read}>${[...control.choices, ...(control.choices.includes(value) ? [] : [value])].map(each => html`<option key=${each} value=${each} selected=${each === value}>${each.split("/").pop()}</option>`)}</select>${help}</div>`;
  if (kind === "several") {
    const chosen = Array.isArray(value) ? value : String(value).split(",");
    const toggle = each => put(control.choices.filter(name => name === each ? !chosen.includes(name) : chosen.includes(name)).join(","));
    return html`<fieldset class="control"><legend>${control.label}</legend><div class="several">${control.choices.map(each => html`<label key=${each}><input type="checkbox" checked=${chosen.includes(each)} onChange=${() => toggle(each)}/>${each}</label>`)}</div>${help}</fieldset>`;
  }
  if (kind === "text" && high <= 1000) return html`<div class="control">${label}<input id=${id} type="text" class="wide" maxlength=${high} value=${value} aria-describedby=${id + "-help"} onInput=${high <= 100 && read} onChange=${read}/>${help}</div>`;
  if (kind === "text") return html`<div class="control">${label}<textarea id=${id} rows="4" maxlength=${high} aria-describedby=${id + "-help"} onInput=${read}>${value}</textarea>${help}</div>`;
  const whole = kind === "integer", scaled = logarithmic && low > 0;
  const place = scaled ? Math.log(value / low) / Math.log(high / low) : Number(value);
  const slide = event => {
    const at = Number(event.target.value), raw = scaled ? low * (high / low) ** at : at;
    const rounded = scaled ? Number(raw.toPrecision(2)) : raw;
    put(whole ? Math.round(rounded) : Number(rounded.toPrecision(4)));
  };
  const step = scaled ? 0.005 : whole ? 1 : Number(((high - low) / 200).toPrecision(2));
  return html`<div class="control"><div class="line">${label}<input class="value" type="text" inputmode="decimal" aria-label=${`${control.label}, value`} value=${shortest(value)} onChange=${read}/></div>
    ${low != null && high != null && html`<input id=${id} type="range" min=${scaled ? 0 : low} max=${scaled ? 1 : high} step=${step} value=${place} aria-valuetext=${short(Number(value))} aria-describedby=${id + "-help"} onInput=${slide}/>`}${help}</div>`;
}

function Load({ path, put, fail }) {
  const [runs, set] = useState([]), [left, leave] = useState([]);
  useEffect(() => { fetched("/api/runs").then(value => set(value.runs), () => {}); }, []);
  const take = event => event.target.value && fetched(`${path}/load?run=${encodeURIComponent(event.target.value)}`).then(value => { leave(value.left); put(value.question); }, problem => fail(problem.message));
  return runs.length > 0 && html`<select aria-label="load the settings of one of my runs" onChange=${take}><option value="">load from a run</option>${runs.map(each => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}</select>
    <span role="status" class="note">${left.length > 0 && `This page cannot show ${left.join(", ")} of the run.`}</span>`;
}

function Measure({ path, values, found, set }) {
  const [busy, wait] = useState(false), [error, fail] = useState("");
  const go = () => { wait(true); fail(""); posted(`${path}/measure`, values).then(value => set(value.answer), problem => fail(problem.message)).finally(() => wait(false)); };
  return html`<section class="panel real"><h2>Run it for real</h2><p class="note">Small, on this machine, in a process of its own with limits of time and memory. Nothing of your runs is touched.</p>
    <button type="button" class="main" disabled=${busy} onClick=${go}>${busy ? "running, up to two minutes" : "Run"}</button>${error && html`<p class="problem" role="alert">${error}</p>`}
    ${found && Object.entries(found).map(([key, view]) => view && html`<${View} key=${key} view=${view}/>`)}</section>`;
}

function Copy({ title, text }) {
  const [done, say] = useState("");
  const copy = () => navigator.clipboard.writeText(text).then(() => say("copied"), () => say("select the text and copy it"));
  return html`<div class="copy"><div class="line"><span>${title}</span><button type="button" onClick=${copy}>Copy</button><span role="status">${done}</span></div><pre tabindex="0">${text}</pre></div>`;
}
