// The views of an answer (studio/explore/views.py): facts, bars, curves, timeline, table, grid, passages.
import { html, useEffect, useRef, useState } from "./vendor/standalone.module.js";
import { amount } from "./text.js";

// Text whose words between backticks are code.
export const prose = text => text.split("`").map((part, i) => i % 2 ? html`<code key=${i}>${part}</code>` : part);

const COLOURS = 10, colour = i => `var(--k${i % COLOURS})`;

export function View({ view }) {
  const Drawn = { facts: Facts, bars: Bars, curves: Curves, timeline: Timeline, table: Table, grid: Grid, passages: Passages }[view.kind];
  return html`<section class="panel"><h2>${view.title}</h2><${Drawn} view=${view}/>${view.note && html`<p class="note">${prose(view.note)}</p>`}</section>`;
}

function Facts({ view }) {
  return html`<dl class="facts">${view.facts.map((each, i) => html`<div key=${each.name}><dt>${each.name}</dt><dd>${view.texts[i]}</dd></div>`)}</dl>`;
}

const Key = ({ names }) => html`<ul class="key">${names.map((name, i) => html`<li key=${name}><i style=${{ background: colour(i) }}></i>${name}</li>`)}</ul>`;

function Bars({ view }) {
  const names = [...new Set(view.bars.flatMap(each => Object.keys(each.parts)))].filter(name => view.bars.some(each => each.parts[name] > 0));
  const sum = each => Object.values(each.parts).reduce((a, b) => a + b, 0), most = Math.max(view.limit ?? 0, ...view.bars.map(sum)) || 1;
  return html`<div class="bars">${view.bars.map(each => html`<div class="bar-row" key=${each.name}><span class="bar-name">${each.name}</span>
      <div class="bar" role="img" aria-label=${`${each.name}: ${amount(sum(each), view.unit)}; ` + names.map(name => `${name} ${amount(each.parts[name] ?? 0, view.unit)}`).join(", ")}>
        ${names.map((name, i) => each.parts[name] > 0 && html`<i key=${name} title=${`${name}: ${amount(each.parts[name], view.unit)}`} style=${{ width: `${100 * each.parts[name] / most}%`, background: colour(i) }}></i>`)}
        ${view.limit && html`<b style=${{ left: `${100 * view.limit / most}%` }} title=${`limit ${amount(view.limit, view.unit)}`}></b>`}</div>
      <span class=${`bar-sum ${view.limit && sum(each) > view.limit ? "problem" : ""}`}>${amount(sum(each), view.unit)}</span></div>`)}</div>
    <${Key} names=${names}/>${view.limit && html`<p class="note">The line is at ${amount(view.limit, view.unit)}.</p>`}`;
}

// The width of an element in pixels, so that text in pictures keeps its size.
function useWidth() {
  const place = useRef(), [width, set] = useState(600);
  useEffect(() => {
    const watcher = new ResizeObserver(() => set(Math.max(place.current?.clientWidth ?? 600, 200)));
    watcher.observe(place.current);
    return () => watcher.disconnect();
  }, []);
  return [place, width];
}

function ticks(low, high, count, logarithmic, bytes = false) {
  if (logarithmic) {
    const found = [];
    for (let power = Math.ceil(Math.log10(low) - 1e-9); power <= Math.log10(high) + 1e-9; power++) found.push(10 ** power);
    const every = Math.ceil(found.length / count);
    if (found.length > 1) return found.filter((_, i) => i % every === 0);
  }
  const scale = bytes ? 2 ** (10 * Math.floor(Math.log2(Math.max(high, 1)) / 10)) : 1; // round numbers of GiB, not of GB
  const raw = (high - low) / count / scale || 1, unit = 10 ** Math.floor(Math.log10(raw)) * scale, step = [1, 2, 5, 10].find(each => each * unit >= raw * scale) * unit;
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(Math.abs(at) < step / 1e6 ? 0 : at);
  return found;
}

function Curves({ view }) {
  const [place, width] = useWidth(), [at, point] = useState(null);
  const height = 280, left = 64, right = 14, top = 10, bottom = 40, logX = view.logarithmic.includes("x"), logY = view.logarithmic.includes("y");
  const curves = view.filled ? stacked(view.curves) : view.curves;
  const xs = curves.flatMap(each => each.x).concat(view.marks.map(each => each.x)).filter(x => !logX || x > 0), ys = curves.flatMap(each => each.y).filter(y => y != null && (!logY || y > 0));
  if (!xs.length || !ys.length) return html`<p class="note" ref=${place}>There is nothing to draw.</p>`;
  const span = (values, log, zero) => { let low = Math.min(...values), high = Math.max(...values); if (!log && zero && low > 0 && low < 0.5 * high) low = 0; return low === high ? [low - (log ? low / 2 : 1), high + 1] : [low, high]; };
  const [x0, x1] = span(xs, logX, false), [y0, y1] = span(ys, logY, true), f = (value, low, high, log) => log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  const px = x => left + (width - left - right) * f(x, x0, x1, logX), py = y => height - bottom - (height - top - bottom) * f(y, y0, y1, logY);
  const line = each => each.x.map((x, i) => each.y[i] == null || (logY && each.y[i] <= 0) ? null : `${px(x).toFixed(1)},${py(each.y[i]).toFixed(1)}`).filter(Boolean).join(" ");
  const move = event => {
    const box = event.currentTarget.getBoundingClientRect(), share = (event.clientX - box.left - left) / (width - left - right);
    point(share < 0 || share > 1 ? null : logX ? x0 * (x1 / x0) ** share : x0 + share * (x1 - x0));
  };
  const near = each => each.x.reduce((best, x, i) => Math.abs(x - at) < Math.abs(each.x[best] - at) ? i : best, 0);
  const said = at == null ? "" : `${view.x} ${amount(at, view.x_unit)}: ` + view.curves.map(each => { const i = near(each); return `${each.labels?.[i] ?? each.name} ${amount(each.y[i], view.y_unit)}`; }).join(", ");
  const label = view.curves.map(each => `${each.name} from ${amount(each.y[0], view.y_unit)} to ${amount(each.y.at(-1), view.y_unit)}`).join("; ");
  return html`<div ref=${place}><svg width=${width} height=${height} role="img" aria-label=${label} onPointerMove=${move} onPointerLeave=${() => point(null)}>
      ${ticks(y0, y1, 5, logY, view.y_unit === "bytes").map(y => html`<g key=${y}><line x1=${left} x2=${width - right} y1=${py(y)} y2=${py(y)} class="grid"/><text x=${left - 6} y=${py(y) + 4} class="tick" text-anchor="end">${amount(y, view.y_unit)}</text></g>`)}
      ${ticks(x0, x1, Math.max(2, Math.floor(width / 130)), logX).map(x => html`<text key=${x} x=${px(x)} y=${height - bottom + 16} class="tick" text-anchor="middle">${amount(x, view.x_unit)}</text>`)}
      <text x=${(left + width - right) / 2} y=${height - 6} class="tick" text-anchor="middle">${view.x}</text>
      ${view.filled && curves.map((each, i) => html`<polygon key=${each.name} points=${`${line(each)} ${[...each.x].reverse().map((x, k) => `${px(x).toFixed(1)},${py(each.base[each.x.length - 1 - k]).toFixed(1)}`).join(" ")}`} fill=${colour(i)} opacity=".85"/>`)}
      ${!view.filled && curves.map((each, i) => each.points ? each.x.map((x, k) => each.y[k] != null && html`<circle key=${each.name + k} cx=${px(x)} cy=${py(each.y[k])} r="4.5" fill=${colour(i)}><title>${each.labels?.[k] ?? each.name}</title></circle>`)
        : html`<polyline key=${each.name} points=${line(each)} fill="none" stroke=${colour(i)} stroke-width="2"/>`)}
      ${view.marks.map(each => html`<g key=${each.name}><line x1=${px(each.x)} x2=${px(each.x)} y1=${top} y2=${height - bottom} class="mark"/><text x=${Math.min(px(each.x) + 4, width - right)} y=${top + 11} class="tick strong" text-anchor=${px(each.x) > width * 0.7 ? "end" : "start"}>${each.name}</text></g>`)}
      ${at != null && html`<line x1=${px(at)} x2=${px(at)} y1=${top} y2=${height - bottom} class="grid"/>`}</svg>
    <div class="say">${said}</div><${Key} names=${view.curves.map(each => each.name)}/></div>`;
}

function stacked(curves) {
  let base = curves[0].x.map(() => 0);
  return curves.map(each => { const made = { ...each, base, y: each.y.map((y, i) => base[i] + (y ?? 0)) }; base = made.y; return made; });
}

function Timeline({ view }) {
  const [place, width] = useWidth(), [said, say] = useState("");
  const left = 8 + 7 * Math.max(...view.rows.map(each => each.length)), row = view.rows.length > 20 ? 18 : 26, end = Math.max(...view.spans.map(each => each.end), 1e-9), height = row * view.rows.length + 4;
  const kinds = [...new Set(view.spans.map(each => each.kind))], px = t => left + (width - left - 2) * t / end;
  return html`<div ref=${place}><svg width=${width} height=${height} role="img" aria-label=${`${view.spans.length} pieces of time in ${view.rows.length} rows, until ${amount(end, view.unit)}`} onPointerLeave=${() => say("")}>
      ${view.rows.map((name, i) => html`<g key=${name}><text x="0" y=${row * i + row / 2 + 4} class="tick">${name}</text><rect x=${left} y=${row * i + 2} width=${width - left - 2} height=${row - 4} class="idle"/></g>`)}
      ${view.spans.map((each, i) => { const w = px(each.end) - px(each.start); return html`<g key=${i} onPointerEnter=${() => say(`${view.rows[each.row]}, ${each.kind} ${each.text}: ${amount(each.start, view.unit)} to ${amount(each.end, view.unit)}`)}>
        <rect x=${px(each.start)} y=${row * each.row + 2} width=${Math.max(w - 0.8, 0.4)} height=${row - 4} fill=${colour(kinds.indexOf(each.kind))}/>${w > 7 * each.text.length + 4 && html`<text x=${px(each.start) + w / 2} y=${row * each.row + row / 2 + 4} class="inside" text-anchor="middle">${each.text}</text>`}</g>`; })}</svg>
    <div class="say">${said}</div><${Key} names=${kinds}/></div>`;
}

function Table({ view }) {
  return html`<div class="wide" tabindex="0" role="region" aria-label=${view.title}><table><thead><tr>${view.columns.map(each => html`<th key=${each.name} class=${each.number ? "number" : ""}>${each.name}</th>`)}</tr></thead>
    <tbody>${view.texts.map((row, i) => html`<tr key=${i} class=${i === view.chosen ? "chosen" : ""}>${row.map((text, k) => html`<td key=${k} class=${view.columns[k].number ? "number" : "wrap"}>${text}</td>`)}</tr>`)}</tbody></table></div>`;
}

function Grid({ view }) {
  const shade = each => each.group != null ? { background: colour(each.group), color: "var(--on-k)" } : { background: `color-mix(in srgb, var(--c0) ${Math.round(100 * (each.share ?? 0))}%, var(--panel))`, color: each.share > 0.5 ? "var(--back)" : "inherit" };
  return html`<div class="wide" tabindex="0" role="region" aria-label=${view.title}><table class="grid"><thead><tr><td></td>${view.columns.map(each => html`<th key=${each}>${each}</th>`)}</tr></thead>
    <tbody>${view.rows.map((name, i) => html`<tr key=${name}><th scope="row">${name}</th>${view.cells[i].map((each, k) => html`<td key=${k} style=${shade(each)} title=${each.label}>${each.text}<span class="hidden">${each.label}</span></td>`)}</tr>`)}</tbody></table></div>`;
}

function Passages({ view }) {
  return html`${view.passages.map((each, i) => html`<div class="finding" key=${i}><strong>${each.name}</strong><pre>${each.text}</pre></div>`)}`;
}
