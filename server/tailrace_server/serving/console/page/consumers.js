// Who reads: each consumer with its lag, its state and the reason; and one of them by partitions.

import { figures, h, isBad, state, table } from "./dom.js";
import { bytes, count, rate, seconds } from "./format.js";
import { age, lag } from "./live.js";
import { pages, sorter } from "./pages.js";

const LIMIT = 100;
const STREAMS = 128;
const STATES = ["", "away", "stuck", "waiting", "moving", "current"];

export function consumers({ live, draw }) {
  const asked = { find: "", state: "", after: 0 };
  const sorted = sorter(draw, "", true);
  const ask = (changes) => {
    Object.assign(asked, { after: 0 }, changes);
    live.watch(topics());
    draw();
  };
  const topics = () => [{ topic: "consumers", limit: LIMIT, ...(asked.find && { find: asked.find }), ...(asked.state && { state: asked.state }), ...(asked.after && { after: String(asked.after) }) }];
  const columns = [
    { name: "name", sort: (row) => row.name || row.peer, cell: (row) => h("a", { href: `#/consumers/${encodeURIComponent(row.id)}` }, row.name || row.peer) },
    { name: "kind", sort: (row) => row.kind, cell: (row) => row.kind },
    { name: "feed", sort: (row) => row.feed, cell: (row) => h("a", { href: `#/feeds/${encodeURIComponent(row.feed)}` }, row.feed) },
    { name: "state", sort: (row) => row.state, cell: (row) => state(row.state) },
    { name: "for", number: true, sort: (row) => age(row, "since_s"), cell: (row) => seconds(age(row, "since_s")) },
    { name: "lag", number: true, sort: lag, cell: (row) => seconds(lag(row)) },
    { name: "behind", number: true, sort: (row) => row.lag_mutations, cell: (row) => count(row.lag_mutations) },
    { name: "position", number: true, sort: (row) => row.sent, cell: (row) => `${count(row.sent)} of ${count(row.high)}` },
    { name: "rate", number: true, sort: (row) => row.rate, cell: (row) => rate(row.rate) },
    { name: "reason", cell: (row) => row.reason, wide: true },
  ];
  function view() {
    const [value] = live.values;
    return [
      h("form", { class: "bar-form", role: "search", onsubmit: (event) => event.preventDefault() },
        h("label", { class: "grow" }, "Filter by name, address or feed", h("input", { type: "search", oninput: (event) => ask({ find: event.target.value }) })),
        h("label", {}, "State", h("select", { onchange: (event) => ask({ state: event.target.value }) }, STATES.map((name) => h("option", { value: name }, name || "any"))))),
      h("section", { class: "card" },
        value ? table(columns, value.consumers, { key: (row) => row.id, sorted, rowClass: (row) => (isBad(row.state) ? "bad" : null), empty: "No consumer is connected here." }) : h("p", { class: "muted" }, live.failures[0]?.message ?? "Loading …"),
        value ? pages(asked.after, value.consumers.length, value.total, LIMIT, (after) => ask({ after })) : null),
      h("p", { class: "note" }, "Followers and replicas are on the overview. A named consumer that has gone stays for a while, as away; one without a name does not."),
    ];
  }
  return { title: () => "Consumers", topics, view };
}

export function consumer({ live, draw }, id) {
  const sorted = sorter(draw, "partition", false);
  let from = 0;
  const topics = () => [{ topic: "consumer", id, limit: STREAMS, ...(from && { from }) }];
  const turn = (first) => {
    from = first;
    live.watch(topics());
    draw();
  };
  const columns = [
    { name: "partition", sort: (row) => row.id, cell: (row) => row.id },
    { name: "state", sort: (row) => row.state, cell: (row) => row.state },
    { name: "sent up to", number: true, sort: (row) => row.sent, cell: (row) => count(row.sent) },
    { name: "it may see", number: true, sort: (row) => row.visible, cell: (row) => count(row.visible) },
    { name: "newest", number: true, sort: (row) => row.high, cell: (row) => count(row.high) },
    { name: "behind", number: true, sort: (row) => row.lag_mutations, cell: (row) => count(row.lag_mutations) },
    { name: "ends at", number: true, cell: (row) => (row.end === null ? "" : count(row.end)) },
  ];
  function view() {
    const [value] = live.values;
    if (!value) return h("p", { class: "muted" }, live.failures[0]?.message ?? "Loading …");
    return [
      h("section", { class: "card" },
        h("p", {}, state(value.state), ` for ${seconds(age(value, "since_s"))}. `, value.reason),
        figures([
          ["lag", seconds(lag(value))], ["mutations behind", count(value.lag_mutations)], ["kind", value.kind],
          ["feed", h("a", { href: `#/feeds/${encodeURIComponent(value.feed)}` }, value.feed)],
          ["peer", value.peer], ["level", value.level], ["sent", rate(value.rate)],
          ["sent, not yet handled", bytes(value.uncredited_bytes)], ["waits to be sent", bytes(value.backlog_bytes)],
          ["barriers that wait", count(value.barriers)], ["connected for", seconds(age(value, "age_s"))],
        ])),
      h("section", { class: "card" }, h("h2", {}, "Partitions"), table(columns, value.partitions ?? [], { key: (row) => String(row.id), sorted }),
        pages(from, value.partitions?.length ?? 0, value.streams, STREAMS, turn)),
    ];
  }
  return { title: () => `Consumer ${live.values[0]?.name || live.values[0]?.peer || id}`, topics, view };
}
