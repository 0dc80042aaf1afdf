// One curve over steps, drawn by uPlot: several runs or sources, marks of events, and a zoom that all charts share.
import { html, useEffect, useRef, useState } from "./vendor/standalone.module.js";
import { short, whole } from "./text.js";

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5"];
export const colourOf = number => `var(${COLOURS[number % COLOURS.length]})`;
const ENOUGH = 150; // values from which on the curve of all steps is faint, and their running mean is drawn

function runningMean(y, span) {
  const rate = 2 / (span + 1);
  let mean = 0, weight = 0;
  return y.map(value => {
    if (value == null) return null;
    mean += rate * (value - mean); weight += rate * (1 - weight);
    return mean / weight;
  });
}

// Series of different steps -> the columns that uPlot wants, null where a series has nothing at a step.
function joined(series) {
  const drawn = series.flatMap(each => {
    if (each.points || each.y.length < ENOUGH || each.plain) return [each];
    return [{ ...each, faint: true }, { ...each, y: runningMean(each.y, Math.max(5, each.y.length / 60)), name: each.name && each.name + ", mean" }];
  });
  return [drawn, uPlot.join(drawn.map(each => [each.x, each.y]))];
}

export function Chart({ title, series, marks = [], range, onZoom, height = 210, logarithmic = false }) {
  const place = useRef(), plot = useRef(), [said, say] = useState("");
  const shape = JSON.stringify([series.map(each => [each.name, each.points, each.y.length >= ENOUGH]), logarithmic, height]);
  useEffect(() => {
    const [drawn, data] = joined(series), text = colour("--quiet"), grid = colour("--line");
    const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui" };
    const options = {
      width: place.current.clientWidth || 400, height,
      scales: { x: { time: false, range: (_, low, high) => range ?? [low, Math.max(high, low + 1)] }, y: { distr: logarithmic ? 3 : 1 } },
      axes: [
        { ...axis, values: (_, values) => values.map(value => Number.isInteger(value) ? whole(value) : "") },
        { ...axis, size: 62, values: (_, values) => values.map(value => value == null ? "" : short(value, 3)) },
      ],
      series: [{}, ...drawn.map(each => {
        const shade = colour(COLOURS[(each.colour ?? 0) % COLOURS.length]);
        return { stroke: each.faint ? shade + "55" : shade, width: each.faint ? 1 : 1.6, spanGaps: true, points: { show: Boolean(each.points), size: 6, fill: shade } };
      })],
      cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 7 }, sync: { key: "steps" } },
      hooks: {
        setSelect: [self => {
          if (self.select.width > 4) onZoom?.([self.posToVal(self.select.left, "x"), self.posToVal(self.select.left + self.select.width, "x")]);
          self.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
        setCursor: [self => {
          const at = self.cursor.idx;
          if (at == null) return say("");
          const values = drawn.map((each, i) => [each, self.data[i + 1][at]]).filter(([each, value]) => value != null && !each.faint);
          say(`step ${whole(self.data[0][at])}: ` + values.map(([each, value]) => (each.name ? each.name + " " : "") + short(value, 5)).join(", "));
        }],
        draw: [self => {
          const { ctx, bbox } = self, low = self.scales.x.min, high = self.scales.x.max;
          ctx.save();
          for (const mark of self.marks ?? []) {
            if (mark.step < low || mark.step > high) continue;
            const x = Math.round(self.valToPos(mark.step, "x", true));
            ctx.strokeStyle = colour(mark.bad ? "--bad" : "--warn"); ctx.lineWidth = devicePixelRatio; ctx.setLineDash([4, 3]);
            ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
          }
          ctx.restore();
        }],
      },
    };
    const made = new uPlot(options, data, place.current);
    made.marks = marks; plot.current = made;
    made.over.addEventListener("dblclick", () => onZoom?.(null));
    const watcher = new ResizeObserver(() => made.setSize({ width: place.current.clientWidth, height }));
    watcher.observe(place.current);
    return () => { watcher.disconnect(); made.destroy(); };
  }, [shape, String(range), matchMedia("(prefers-color-scheme: dark)").matches]);
  useEffect(() => { plot.current.marks = marks; plot.current.setData(joined(series)[1]); }, [series, marks]);
  const newest = series[0]?.y.findLast(value => value != null);
  return html`<section class="panel" aria-label=${`${title}, newest value ${short(newest, 5)}`}>
    <h2>${title}${series.length > 1 && html` <small>${series.map(each => html`<span style=${{ color: colourOf(each.colour ?? 0), marginRight: "10px" }}>${each.points ? "●" : "―"} ${each.name}</span>`)}</small>`}</h2>
    <div ref=${place}></div><div class="say" aria-live="off">${said || html`newest ${short(newest, 5)}`}</div></section>`;
}

export function Spark({ values, label }) {
  if (values.length < 2) return null;
  const sorted = [...values].sort((a, b) => a - b), low = sorted[0], high = sorted[Math.floor(0.98 * (sorted.length - 1))];
  const points = values.map((value, i) => `${(100 * i / (values.length - 1)).toFixed(1)},${(22 - 20 * Math.min(1, (value - low) / (high - low || 1))).toFixed(1)}`);
  return html`<svg width="104" height="24" viewBox="-2 0 104 24" role="img" aria-label=${label}><polyline points=${points.join(" ")} fill="none" stroke="var(--c0)" stroke-width="1.4"/></svg>`;
}
