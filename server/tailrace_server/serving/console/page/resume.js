// What would become of a consumer with stored positions, and of one that begins elsewhere. Nothing is changed.

import { ask } from "./api.js";
import { chooser, loadNames } from "./chooser.js";
import { h, state, table } from "./dom.js";
import { count, time } from "./format.js";

const OUTCOMES = { "goes on": "current", "starts over": "stuck", waits: "waiting", ends: "failed" };

export function resume({ draw, go }, name = "") {
  const asked = { positions: "", to: "now", other: "", prefix: "" };
  let explained = null;
  let preview = null;
  let failure = "";

  async function request(path, body) {
    failure = "";
    try {
      return await ask(`feeds/${encodeURIComponent(name)}/${path}`, { ...body, ...(asked.prefix && { key_prefix: asked.prefix }) });
    } catch (error) {
      failure = error.message;
      return null;
    } finally {
      draw();
    }
  }

  async function explain() {
    explained = await request("explain", { positions: asked.positions.trim() });
    draw();
  }

  async function reset() {
    const to = asked.to === "other" ? asked.other.trim() : asked.to;
    preview = await request("reset", { to, ...(asked.positions.trim() && { from: asked.positions.trim() }) });
    draw();
  }

  const outcomes = [
    { name: "partition", number: true, cell: (row) => row.partition },
    { name: "outcome", cell: (row) => state(OUTCOMES[row.outcome] ?? "idle", row.outcome) },
    { name: "position", number: true, cell: (row) => count(row.seq) },
    { name: "goes back to", number: true, cell: (row) => count(row.goes_back_to) },
    { name: "behind", number: true, cell: (row) => count(row.behind) },
    { name: "why", wide: true, cell: (row) => row.message || row.reason },
  ];
  const places = [
    { name: "partition", number: true, cell: (row) => row.id },
    { name: "begins above seq", number: true, cell: (row) => (row.seq === null ? "when it opens" : count(row.seq)) },
    { name: "newest", number: true, cell: (row) => count(row.high) },
    { name: "it would get", number: true, cell: (row) => count(row.mutations) },
    { name: "again", number: true, cell: (row) => count(row.again) },
    { name: "never", number: true, cell: (row) => (row.skipped ? h("strong", { class: "error" }, count(row.skipped)) : count(row.skipped)) },
  ];

  function view() {
    return [
      h("form", { class: "card", onsubmit: (event) => { event.preventDefault(); explain(); } },
        h("div", { class: "bar-form" }, chooser(name, (chosen) => chosen && go(`#/resume/${encodeURIComponent(chosen)}`))),
        h("label", {}, "Positions that a consumer has stored (trp1. …)", h("textarea", { name: "positions", spellcheck: "false", oninput: (event) => { asked.positions = event.target.value; } })),
        h("div", { class: "bar-form" },
          h("label", { class: "grow" }, "Key prefix (a token with one needs it)", h("input", { name: "prefix", spellcheck: "false", oninput: (event) => { asked.prefix = event.target.value; } })),
          h("button", { class: "first", disabled: !name }, "Explain"))),
      failure ? h("p", { class: "card error", role: "alert" }, failure) : null,
      explained ? h("section", { class: "card" }, h("h2", {}, "If it resumes there"), h("p", {}, explained.summary), table(outcomes, explained.partitions, { key: (row) => String(row.partition) })) : null,
      h("form", { class: "card", onsubmit: (event) => { event.preventDefault(); reset(); } },
        h("h2", {}, "Begin elsewhere: a preview"),
        h("div", { class: "bar-form" },
          h("label", {}, "Begin at", h("select", { name: "to", onchange: (event) => { asked.to = event.target.value; draw(); } },
            [["now", "now"], ["beginning", "the beginning"], ["other", "a time, or positions"]].map(([value, label]) => h("option", { value }, label)))),
          asked.to === "other" ? h("label", { class: "grow" }, "2026-11-21T10:00:00Z, -1h, or positions", h("input", { name: "other", required: true, oninput: (event) => { asked.other = event.target.value; } })) : null,
          h("button", { disabled: !name }, "Preview"))),
      preview ? h("section", { class: "card" }, h("h2", {}, "If it began there"),
        h("p", {}, `It would get ${count(preview.mutations)} mutations`, preview.oldest_us ? `, the oldest of ${time(preview.oldest_us)}` : "",
          preview.again === null ? "." : `: ${count(preview.again)} of them again. `, preview.skipped ? h("strong", { class: "error" }, `It would never get ${count(preview.skipped)}.`) : null),
        h("p", {}, preview.how), h("p", { class: "muted" }, "Positions"), h("pre", {}, preview.positions),
        h("p", { class: "muted" }, "Command"), h("pre", {}, preview.command),
        table(places, preview.partitions, { key: (row) => String(row.id) })) : null,
    ];
  }

  loadNames(draw);
  return { title: () => (name ? `Resume in ${name}` : "Resume"), topics: () => [], view };
}
