// Rows as they are accepted, with a filter, and a pause after which nothing is missing.

import { closeSocket, openSocket } from "./api.js";
import { chooser, loadNames } from "./chooser.js";
import { h, state, table } from "./dom.js";
import { count, short, text, time } from "./format.js";

const ROWS_MAX = 500;

export function tail({ draw, go }, name = "") {
  const asked = { since: "now", prefix: "", keysOnly: false };
  let wanted = ""; // text of the rows that are shown
  let socket = null;
  let status = ["idle", name ? "stopped" : "choose a feed"];
  let rows = []; // the newest first
  let positions = null; // of everything that was shown
  let seen = new Map(); // partition -> the last seq shown
  let total = 0;
  let isDrawing = false;

  function drawSoon() { // at most once a frame, however many messages come
    if (isDrawing) return;
    isDrawing = true;
    requestAnimationFrame(() => {
      isDrawing = false;
      draw();
    });
  }

  function begin(from) {
    stop();
    if (!name) return;
    const since = from === null ? asked.since : "message";
    const query = new URLSearchParams({ since, ...(asked.prefix && { key_prefix: asked.prefix }), ...(asked.keysOnly && { keys_only: "true" }) });
    const own = openSocket(`feeds/${encodeURIComponent(name)}/tail?${query}`.replaceAll("+", "%20"), "tailrace.json.v1");
    socket = own;
    status = ["idle", "connecting …"];
    own.onopen = () => from !== null && own.send(JSON.stringify({ since: from }));
    own.onmessage = (event) => own === socket && took(JSON.parse(event.data));
    own.onclose = (event) => {
      if (own !== socket) return;
      socket = null;
      if (status[0] !== "failed") status = ["failed", event.reason || "the node does not answer, or has refused the tail"];
      drawSoon();
    };
  }

  function took(message) {
    if (message.type === "open") [status, positions] = [["moving", "live"], message.positions];
    else if (message.type === "positions") positions = message.positions;
    else if (message.type === "error") status = ["failed", message.message];
    else if (message.type === "rollback") {
      rows.unshift({ partition: message.partition, note: `rollback to seq ${message.seq}: rows above it no longer exist`, seq: message.seq, number: total });
      seen.set(message.partition, message.seq);
      total += 1;
    } else if (message.type === "mutations") take(message);
    drawSoon();
  }

  function take({ partition, rows: came, refetched }) {
    const after = refetched ? -1 : seen.get(partition) ?? -1; // after a pause some come again
    for (const row of came) {
      if (row.seq <= after) continue;
      rows.unshift({ ...row, partition, number: total });
      total += 1;
    }
    if (!refetched) seen.set(partition, Math.max(after, came.at(-1)?.seq ?? after));
    rows.length = Math.min(rows.length, ROWS_MAX);
  }

  function stop() {
    const before = socket;
    socket = null;
    if (before) closeSocket(before);
  }

  function pause() {
    if (socket) {
      stop();
      status = ["waiting", "paused"];
    } else if (name) begin(positions);
    draw();
  }

  function restart() {
    [rows, seen, total, positions] = [[], new Map(), 0, null];
    begin(null);
    draw();
  }

  const columns = [
    { name: "partition", number: true, cell: (row) => row.partition },
    { name: "seq", number: true, cell: (row) => count(row.seq) },
    { name: "time", cell: (row) => (row.timestamp ? time(row.timestamp) : "") },
    { name: "key", cell: (row) => (row.note ? "" : h("code", {}, short(text(row.key, row.key_encoding), 120))), wide: true },
    { name: "value", cell: (row) => (row.note ? h("span", { class: "error" }, row.note) : row.deleted ? h("em", {}, "deleted") : h("code", {}, short(text(row.value, row.value_encoding)))), wide: true },
  ];

  // What a row shows is searched, before it is shortened.
  const has = (row, part) => `${row.note ?? text(row.key, row.key_encoding)}\n${text(row.value, row.value_encoding)}`.toLowerCase().includes(part);

  function view() {
    const shown = wanted ? rows.filter((row) => has(row, wanted)) : rows;
    return [
      h("form", { class: "bar-form", onsubmit: (event) => { event.preventDefault(); restart(); } },
        chooser(name, (chosen) => chosen && go(`#/tail/${encodeURIComponent(chosen)}`)),
        h("label", {}, "Keys that begin with", h("input", { name: "prefix", oninput: (event) => { asked.prefix = event.target.value; } })),
        h("label", {}, "Since", h("select", { name: "since", onchange: (event) => { asked.since = event.target.value; } },
          [["now", "now"], ["-5m", "5 minutes ago"], ["-1h", "an hour ago"], ["beginning", "the beginning"]].map(([value, label]) => h("option", { value }, label)))),
        h("label", {}, "Show rows with", h("input", { type: "search", name: "wanted", oninput: (event) => { wanted = event.target.value.toLowerCase(); draw(); } })),
        h("label", { class: "check" }, h("input", { type: "checkbox", onchange: (event) => { asked.keysOnly = event.target.checked; } }), "keys only"),
        h("button", { class: "first" }, "Begin"),
        h("button", { type: "button", id: "pause", disabled: !name, onclick: pause }, socket ? "Pause (p)" : "Go on (p)")),
      h("p", {}, state(...status), `, ${count(total)} rows`, wanted ? `; ${count(shown.length)} of the newest ${count(rows.length)} are shown` : total > ROWS_MAX ? `; the newest ${ROWS_MAX} are shown` : ""),
      h("section", { class: "card tail", tabindex: 0, "aria-label": "Rows" }, table(columns, shown, { key: (row) => String(row.number), empty: rows.length ? "No row has this text." : name ? "No row has come yet." : "Choose a feed." })),
    ];
  }

  loadNames(draw);
  if (name) begin(null);
  return { title: () => (name ? `Tail of ${name}` : "Tail"), topics: () => [], view, pause, close: stop, retry: restart };
}
