// Pictures as SVG: a line of samples, the segments of a partition, the branches of its history.

import { h } from "./dom.js";
import { bytes, count, time } from "./format.js";

const WIDTH = 900;

export function sparkline(samples, what) {
  const most = Math.max(...samples, 1);
  const points = samples.map((value, index) => `${((index / (samples.length - 1)) * WIDTH).toFixed(1)},${(44 - (value / most) * 40).toFixed(1)}`);
  return h("svg", { class: "picture", viewBox: `0 0 ${WIDTH} 48`, preserveAspectRatio: "none", role: "img", "aria-label": `${what}: now ${count(samples.at(-1))}, at most ${count(most)}` },
    h("line", { class: "scale", x1: 0, x2: WIDTH, y1: 4, y2: 4 }), h("line", { class: "scale", x1: 0, x2: WIDTH, y1: 44, y2: 44 }),
    h("polyline", { class: "spark", points: points.join(" ") }));
}

// Segments from the oldest to the newest, then what is in memory only; widths by the root of the bytes, so that small ones show.
export function segments(value) {
  const parts = value.segment_list.map((one) => ({
    size: one.bytes,
    kind: one.lost ? "lost" : one.compacting ? "compacting" : one.planned ? "planned" : "",
    label: `segment of seqs ${count(one.after + 1)} to ${count(one.last)}: ${count(one.rows)} rows, ${bytes(one.bytes)}, ${time(one.oldest_us)} to ${time(one.newest_us)}`
      + (one.lost ? "; cannot be read" : one.compacting ? "; is being compacted" : one.planned ? "; will be compacted next" : ""),
  }));
  if (value.queue.blocks) {
    parts.push({ size: value.queue.bytes, kind: "queue", label: `in memory, not yet in a segment: seqs ${count(value.queue.after + 1)} to ${count(value.queue.last)}, ${bytes(value.queue.bytes)}` });
  }
  if (!parts.length) return h("p", { class: "muted" }, "The partition is empty.");
  const sizes = parts.map((part) => Math.max(Math.sqrt(part.size), 1));
  const sum = sizes.reduce((a, b) => a + b, 0);
  let left = 0;
  const boxes = parts.map((part, index) => {
    const width = (sizes[index] / sum) * WIDTH;
    left += width;
    return h("rect", { class: `seg ${part.kind}`, x: (left - width).toFixed(2), y: 4, width: Math.max(width, 1).toFixed(2), height: 36 }, h("title", {}, part.label));
  });
  const legend = [["seg", "segment"], ["compacting", "compacted now, or next"], ["lost", "cannot be read"], ["queue", "in memory only"]];
  return [
    h("svg", { class: "picture", viewBox: `0 0 ${WIDTH} 60`, role: "img", "aria-label": `${value.segment_list.length} segments, oldest first, and ${value.queue.blocks} blocks in memory` },
      boxes, h("text", { x: 0, y: 56 }, "oldest"), h("text", { x: WIDTH, y: 56, "text-anchor": "end" }, `newest, seq ${count(value.high)}`)),
    h("p", { class: "legend" }, legend.map(([kind, name]) => h("span", {}, h("i", { class: `key-${kind}` }), name))),
  ];
}

// Each branch is a lane that leaves the one before at its base. What stood above that base on the older one is gone.
export function branches(value) {
  const list = value.branches_list;
  const last = Math.max(value.high, ...list.map((one) => one.base), 1);
  const x = (seq) => 12 + (seq / last) * (WIDTH - 190);
  const lanes = list.map((one, index) => {
    const y = 16 + index * 24;
    const newer = list[index + 1];
    const end = newer ? newer.base : value.high;
    const name = `term ${one.term}, ${one.branch.slice(0, 8)}: ${newer ? `seqs ${count(one.base + 1)} to ${count(end)}` : `from seq ${count(one.base + 1)}, the present one`}`;
    const gone = newer && one.end !== null && one.end > end ? one.end : null;
    return [
      h("path", { class: `branch ${newer ? "" : "newest"}`, d: `M${x(one.base).toFixed(1)} ${y} H${Math.max(x(end), x(one.base) + 2).toFixed(1)}` }, h("title", {}, name)),
      gone ? h("path", { class: "branch gone", d: `M${x(end).toFixed(1)} ${y} H${x(gone).toFixed(1)}` }, h("title", {}, `seqs ${count(end + 1)} to ${count(gone)} are gone`)) : null,
      newer ? h("path", { class: "branch", d: `M${x(end).toFixed(1)} ${y} V${y + 24}` }) : null,
      h("circle", { class: "dot", cx: x(one.base).toFixed(1), cy: y, r: 3.5 }),
      h("text", { x: WIDTH - 165, y: y + 4 }, `term ${one.term}, above seq ${count(one.base)}`),
    ];
  });
  return h("svg", { class: "picture", viewBox: `0 0 ${WIDTH} ${list.length * 24 + 8}`, role: "img", "aria-label": `${list.length} branches of history; the present one begins above seq ${list.at(-1)?.base ?? 0}` }, lanes);
}
