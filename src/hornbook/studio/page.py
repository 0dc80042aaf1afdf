"""A chart as one self-contained HTML page; a tooltip shows the values of the panel under the pointer."""

import json
from html import escape

from hornbook.studio.chart import picture
from hornbook.studio.layout import Chart

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The browser lets the page load nothing."""

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 1rem auto; max-width: 1100px; font: 13px/1.4 system-ui, sans-serif; background: #fff; color: #303845; }
svg { width: 100%; height: auto; display: block; touch-action: pan-y; }
#said { position: fixed; pointer-events: none; padding: .4rem .6rem; border: 1px solid #aab3c0; border-radius: 4px;
  background: #fffffff0; white-space: nowrap; font-variant-numeric: tabular-nums; }
#said td { padding: 0 .5rem 0 0; } #said td:last-child { text-align: right; padding: 0; }
@media (prefers-color-scheme: dark) { body { background: #14181f; color: #d5dbe4; }
  #said { background: #1d232cf0; border-color: #59636f; } }
"""

_SCRIPT = """
const data = JSON.parse(document.getElementById("data").textContent), axis = data.axis;
const picture = document.querySelector("svg"), said = document.getElementById("said");
const cursor = document.createElementNS(picture.namespaceURI, "line");
cursor.id = "cursor"; cursor.setAttribute("y1", 0); cursor.setAttribute("y2", picture.viewBox.baseVal.height);
picture.append(cursor);

function nearest(places, x) {
  let low = 0, high = places.length - 1;
  while (low < high) { const mid = (low + high) >> 1; if (places[mid] < x) low = mid + 1; else high = mid; }
  return low > 0 && x - places[low - 1] < places[low] - x ? low - 1 : low;
}

function cell(row, words, look) {
  const made = row.insertCell(); made.textContent = words; if (look) made.setAttribute("style", look);
}

function say(panel, x) {
  const table = document.createElement("table"), reach = (axis.high - axis.low) / 50;
  for (const curve of panel.curves) {
    const at = nearest(curve.x, x), value = curve.y[at];
    if (value === null || Math.abs(curve.x[at] - x) > reach) continue;
    const row = table.insertRow(), few = panel.curves.every(each => each.name === curve.name);
    cell(row, few ? panel.title : curve.name);
    if (data.runs.length > 1) cell(row, data.runs[curve.run]);
    cell(row, data.position + " " + curve.x[at].toLocaleString("en"), "opacity:.6");
    cell(row, Number(value.toPrecision(5)).toString());
  }
  said.replaceChildren(table);
}

picture.addEventListener("pointermove", event => {
  const box = picture.getBoundingClientRect(), place = (event.clientX - box.left) / box.width * axis.width;
  const share = (place - axis.start) / (axis.end - axis.start);
  const height = (event.clientY - box.top) / box.height * picture.viewBox.baseVal.height;
  const panel = data.panels.find(each => each.top <= height && height <= each.bottom);
  said.hidden = !panel || share < 0 || share > 1;
  cursor.style.display = said.hidden ? "none" : "";
  if (said.hidden) return;
  cursor.setAttribute("x1", place); cursor.setAttribute("x2", place);
  say(panel, axis.low + share * (axis.high - axis.low));
  const right = event.clientX > innerWidth / 2;
  said.style.left = right ? "" : event.clientX + 16 + "px";
  said.style.right = right ? innerWidth - event.clientX + 16 + "px" : "";
  said.style.top = Math.max(8, Math.min(event.clientY, innerHeight - said.offsetHeight - 8)) + "px";
});
picture.addEventListener("pointerleave", () => { said.hidden = true; cursor.style.display = "none"; });
"""


def page(chart: Chart) -> str:
    """The chart as one HTML file."""
    names = ", ".join(history.name for history in chart.histories)
    data = json.dumps(chart.data(), separators=(",", ":")).replace("<", "\\u003c")
    head = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(names.encode(errors='replace').decode())}</title><style>{_STYLE}</style>",
    ]
    body = [
        picture(chart),
        '<div id="said" hidden></div>',
        f'<script type="application/json" id="data">{data}</script>',
    ]
    return "\n".join([*head, *body, f"<script>{_SCRIPT}</script>"]) + "\n"
