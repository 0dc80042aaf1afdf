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

export async function get(path) {
  const answer = await fetch("/api/runs" + path);
  const value = answer.headers.get("content-type")?.startsWith("application/json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(value.error || answer.statusText);
  return value;
}

export async function post(path, body) {
  const answer = await fetch("/api/runs" + path, { method: "POST", headers: { "x-hornbook": "1", "content-type": "application/json" }, body: JSON.stringify(body) });
  const value = answer.headers.get("content-type")?.startsWith("application/json") ? await answer.json() : { error: await answer.text() };
  if (!answer.ok) throw new Error(value.error || answer.statusText);
  return value;
}
