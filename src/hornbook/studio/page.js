const data = JSON.parse(document.getElementById("data").textContent), axis = data.axis;
const picture = document.querySelector("svg"), said = document.getElementById("said");
const cursor = document.createElementNS(picture.namespaceURI, "line");
cursor.id = "cursor"; cursor.style.display = "none"; cursor.setAttribute("y1", 0); cursor.setAttribute("y2", picture.viewBox.baseVal.height);
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
