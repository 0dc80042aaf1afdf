// What hornbook tell does: save, stop, change settings. Each with a reason, which the ledger keeps.
import { html, useState } from "./vendor/standalone.module.js";
import { post } from "./text.js";

const quoted = words => /^[\w@%+=:,./-]+$/.test(words) ? words : `'${words.replaceAll("'", "'\\''")}'`;

export function Control({ path, run }) {
  const [action, choose] = useState("save"), [words, write] = useState(""), [reason, give] = useState(""), [at, when] = useState(""), [said, say] = useState(null), [busy, work] = useState(false);
  if (run.read_only) return html`<p>This page only shows runs (--read-only). <code>hornbook tell ${run.path} save</code> asks from a terminal.</p>`;
  if (run.status === "finished") return html`<p>The run has finished: there is nothing to ask of it. <code>hornbook resume</code> with a larger train.tokens makes it longer.</p>`;
  const ask = async dry => {
    work(true); say(null);
    const settings = action === "set" ? words.split(/\s+/).filter(Boolean) : [];
    try {
      const answer = await post(path + "/ask", { action, settings, reason, at: at.trim() || null, dry_run: dry });
      const what = answer.changes.length ? answer.changes.join(", ") : action === "set" ? "nothing changes" : action;
      say({ good: true, text: dry ? `would ask: ${what}` : `asked: ${what}. The run answers under Events.` });
      if (!dry) { give(""); write(""); }
    } catch (problem) { say({ text: problem.message }); }
    work(false);
  };
  const command = `hornbook tell ${quoted(run.path)} ${action === "set" ? words || "KEY=VALUE" : action}${at.trim() ? ` --at ${at.trim()}` : ""}${reason ? ` --reason ${quoted(reason)}` : ""}`;
  return html`<p class="lead">Ask the run to save, to stop, or to change settings, such as optim.lr=1e-4, at the next step or at a later one. It is what <code>hornbook tell</code> does.</p>
    <form class="ask" onSubmit=${event => { event.preventDefault(); ask(false); }}>
      <label>what<select value=${action} onChange=${event => choose(event.target.value)}><option value="save">save a checkpoint</option><option value="set">change settings</option><option value="stop">stop, with a checkpoint</option></select></label>
      ${action === "set" && html`<label>settings<input value=${words} placeholder="optim.lr=1e-4" required onInput=${event => write(event.target.value)}/></label>`}
      <label>after which step (empty: the next one)<input value=${at} placeholder="1200, or +200" onInput=${event => when(event.target.value)}/></label>
      <label>reason<input value=${reason} required maxlength="1000" placeholder="why; the ledger keeps it" onInput=${event => give(event.target.value)}/></label>
      <div class="bar"><button class="main" disabled=${busy || !reason.trim()}>Ask</button><button type="button" disabled=${busy || !reason.trim()} onClick=${() => ask(true)}>Only check</button></div>
      ${said && html`<p class=${said.good ? "done" : "problem"} role="status">${said.text}</p>`}
      <p>In a terminal: <code>${command}</code></p></form>`;
}
