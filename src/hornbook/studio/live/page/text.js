// Numbers and times as people read them, and requests to this server.
const grouped = new Intl.NumberFormat("en");

export const whole = value => value == null ? "" : grouped.format(Math.round(value));

export function short(value, digits = 4) {
  if (value == null || !isFinite(value)) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(digits - 2).replace("e+", "e");
  return Number(value.toPrecision(digits)).toString();
}

export function many(value) {
  for (const [unit, size] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (value >= size) return short(value / size, 3) + " " + unit;
  return short(value, 3);
}

export function span(seconds) {
  if (seconds == null || !isFinite(seconds)) return "";
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) if (seconds >= 2 * size) return short(seconds / size, 3) + " " + unit;
  return (seconds < 10 ? short(seconds, 2) : Math.round(seconds)) + " s";
}

export const clock = time => time ? new Date(1000 * time).toLocaleString("sv").slice(5) : "";

// A value of an explorer in its unit, as `words` of studio/explore/views.py writes it.
export function amount(value, unit = "") {
  if (value == null || !isFinite(value)) return "";
  if (unit === "bytes") {
    for (const [name, power] of [["TiB", 40], ["GiB", 30], ["MiB", 20], ["KiB", 10]]) if (value >= 2 ** power) return short(value / 2 ** power, 3) + " " + name;
    return Math.round(value) + " B";
  }
  if (unit === "seconds") return value === 0 ? "0" : value < 1 ? short(1e3 * value, 3) + " ms" : value < 120 ? short(value, 4) + " s" : span(value);
  if (unit === "share") return short(100 * value, 3) + " %";
  if (unit === "count") return value >= 1e4 ? many(value).replace("G", "B") : short(value, 4);
  return unit === "operations" ? value.toExponential(0) : short(value, 3);
}

async function answer(found) {
  const value = found.headers.get("content-type")?.startsWith("application/json") ? await found.json() : { error: await found.text() };
  if (!found.ok) throw new Error(value.error || found.statusText);
  return value;
}

// Who answers, and where a page is: this server. Public pages, which have none (scripts/public_pages), set all of it.
export const site = {
  ask: (path, options) => fetch(path, options).then(answer),
  link: path => path,
  place: () => new URL(location),
  runs: true,
};

export const fetched = path => site.ask(path);
export const posted = (path, body = {}) => site.ask(path, { method: "POST", headers: { "x-hornbook": "1", "content-type": "application/json" }, body: JSON.stringify(body) });
export const get = path => fetched("/api/runs" + path);
export const post = (path, body) => posted("/api/runs" + path, body);
