// Numbers with their units, as an operator reads them.

export function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (value >= 1024 && place < units.length - 1) {
    value /= 1024;
    place += 1;
  }
  return `${place === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[place]}`;
}

export function rate(value, unit = "") {
  if (value === null || value === undefined) return "–";
  return `${value >= 10 || value === 0 ? count(value) : value.toFixed(1)}${unit}/s`;
}

export function bytesRate(value) {
  return value === null || value === undefined ? "–" : `${bytes(value)}/s`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

export function time(us) {
  return us === null || us === undefined ? "–" : new Date(us / 1000).toISOString().replace("T", " ").replace("Z", " UTC");
}

// Bytes as the API gives them: text, or base64, which is shown as hexadecimal digits.
export function text(value, encoding) {
  if (value === null || value === undefined) return "";
  if (encoding !== "base64") return value;
  return `0x${[...atob(value)].map((char) => char.charCodeAt(0).toString(16).padStart(2, "0")).join("")}`;
}

export function short(value, most = 300) {
  return value.length > most ? `${value.slice(0, most)} … (${count(value.length)} characters)` : value;
}
