// The feeds; one of them by partitions; and a partition with pictures of its segments and its history.

import { figures, h, isBad, state, table } from "./dom.js";
import { bytes, count, rate, seconds } from "./format.js";
import { age } from "./live.js";
import { pages, sorter } from "./pages.js";
import { branches, segments } from "./pictures.js";

const LIMIT = 100;
const PARTITIONS = 128;
const to = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export function feeds({ live, draw }) {
  const asked = { find: "", after: [] }; // after: the last names of the pages before
  const sorted = sorter(draw, "", false);
  const ask = (changes) => {
    Object.assign(asked, changes);
    live.watch(topics());
    draw();
  };
  const topics = () => [{ topic: "feeds", limit: LIMIT, ...(asked.find && { find: asked.find }), ...(asked.after.length && { after: asked.after.at(-1) }) }];
  const columns = [
    { name: "feed", sort: (row) => row.name, cell: (row) => h("a", { href: to("feeds", row.name) }, row.name) },
    { name: "state", sort: (row) => row.state, cell: (row) => state(row.state) },
    { name: "written", number: true, sort: (row) => row.mutations_rate, cell: (row) => rate(row.mutations_rate) },
    { name: "mutations", number: true, sort: (row) => row.mutations, cell: (row) => count(row.mutations) },
    { name: "consumers", number: true, sort: (row) => row.consumers, cell: (row) => count(row.consumers) },
    { name: "slowest", number: true, sort: (row) => row.lag_s, cell: (row) => (row.consumers ? seconds(row.lag_s) : "") },
    { name: "partitions", number: true, sort: (row) => row.partitions, cell: (row) => count(row.partitions) },
    { name: "segments", number: true, sort: (row) => row.segment_bytes, cell: (row) => `${count(row.segments)}, ${bytes(row.segment_bytes)}` },
    { name: "memory", number: true, sort: (row) => row.memory_bytes, cell: (row) => bytes(row.memory_bytes) },
    { name: "keeps", sort: (row) => row.retention, cell: (row) => row.retention },
    { name: "reason", cell: (row) => row.reason, wide: true },
  ];
  function view() {
    const [value] = live.values;
    const turn = (first) => ask({ after: first < asked.after.length * LIMIT ? asked.after.slice(0, -1) : [...asked.after, value.feeds.at(-1).name] });
    return [
      h("form", { class: "bar-form", role: "search", onsubmit: (event) => event.preventDefault() },
        h("label", { class: "grow" }, "Filter by name", h("input", { type: "search", oninput: (event) => ask({ find: event.target.value, after: [] }) }))),
      h("section", { class: "card" },
        value ? table(columns, value.feeds, { key: (row) => row.name, sorted, rowClass: (row) => (isBad(row.state) ? "bad" : null), empty: asked.find ? "No feed has this in its name." : "There is no feed yet: `tailrace feed create NAME` makes one." }) : h("p", { class: "muted" }, live.failures[0]?.message ?? "Loading …"),
        value ? pages(asked.after.length * LIMIT, value.feeds.length, value.total, LIMIT, turn) : null),
    ];
  }
  return { title: () => "Feeds", topics, view };
}

export function feed({ live, draw }, name) {
  let from = 0;
  const sorted = sorter(draw, "partition", false);
  const topics = () => [{ topic: "feed", feed: name, limit: PARTITIONS, ...(from && { from }) }];
  const turn = (first) => {
    from = first;
    live.watch(topics());
    draw();
  };
  const columns = [
    { name: "partition", sort: (row) => row.id, cell: (row) => h("a", { href: to("feeds", name, String(row.id)) }, String(row.id)) },
    { name: "role", sort: (row) => row.role, cell: (row) => `${row.role}, term ${row.term}` },
    { name: "newest seq", number: true, sort: (row) => row.high, cell: (row) => count(row.high) },
    { name: "on disk", number: true, sort: (row) => row.durable, cell: (row) => count(row.durable) },
    { name: "at quorum", number: true, sort: (row) => row.quorum, cell: (row) => (row.followers || row.quorum ? count(row.quorum) : "–") },
    { name: "in segments", number: true, sort: (row) => row.flushed, cell: (row) => count(row.flushed) },
    { name: "segments", number: true, sort: (row) => row.segment_bytes, cell: (row) => `${count(row.segments)}, ${bytes(row.segment_bytes)}` },
    { name: "memory", number: true, sort: (row) => row.memory_bytes, cell: (row) => bytes(row.memory_bytes) },
    { name: "branches", number: true, sort: (row) => row.branches, cell: (row) => count(row.branches) },
    { name: "problem", cell: (row) => (row.problem ? h("span", { class: "error" }, row.problem) : ""), wide: true },
  ];
  function view() {
    const [value] = live.values;
    if (!value) return h("p", { class: "muted" }, live.failures[0]?.message ?? "Loading …");
    const settings = Object.entries(value.settings ?? {}).filter(([, setting]) => setting !== null && typeof setting !== "object");
    return [
      h("section", { class: "card" }, h("p", {}, state(value.state), " ", value.reason),
        figures([
          ["written", rate(value.mutations_rate)], ["mutations", count(value.mutations)], ["consumers", count(value.consumers)],
          ["slowest consumer", value.consumers ? seconds(value.lag_s) : "none"], ["not yet at quorum", value.states.some((one) => one.followers) ? count(value.quorum_lag_mutations) : "–"],
          ["memory", bytes(value.memory_bytes)], ["segments", `${count(value.segments)}, ${bytes(value.segment_bytes)}`], ["level of writes", `${value.default_level}${value.settings?.level ? ", the feed's own" : ", by default"}`],
        ]),
        h("p", {}, h("a", { href: to("tail", name) }, "tail"), " · ", h("a", { href: to("keys", name) }, "look up a key"), " · ", h("a", { href: to("resume", name) }, "explain positions"))),
      h("section", { class: "card" }, h("h2", {}, "Partitions"),
        table(columns, value.states, { key: (row) => String(row.id), sorted, rowClass: (row) => (row.problem ? "bad" : null) }),
        pages(from, value.states.length, value.partitions, PARTITIONS, turn)),
      h("section", { class: "card" }, h("h2", {}, "Settings"), figures(settings.map(([key, setting]) => [key, key === "feed_id" ? h("code", {}, setting) : String(setting)]))),
    ];
  }
  return { title: () => `Feed ${name}`, topics, view };
}

export function partition({ live }, name, number) {
  const topics = () => [{ topic: "partition", feed: name, partition: Number(number) }];
  function view() {
    const [value] = live.values;
    if (!value) return h("p", { class: "muted" }, live.failures[0]?.message ?? "Loading …");
    const levels = Object.entries(value.levels).filter(([level, seq]) => seq !== null && (level !== "quorum" || seq || value.followers));
    return [
      h("p", {}, h("a", { href: to("feeds", name) }, `all partitions of ${name}`)),
      value.problem ? h("p", { class: "card error" }, value.problem) : null,
      h("section", { class: "card" }, figures([
        ["role, term", `${value.role}, ${value.term}`], ["leader", value.leader || "none"],
        ...levels.map(([level, seq]) => [`seq at level ${level}`, count(seq)]),
        ["purged up to", count(value.purge)], ["trimmed up to", count(value.trim)], ["memory", bytes(value.memory_bytes)],
      ])),
      h("section", { class: "card" }, h("h2", {}, "Segments and compaction"), segments(value), compaction(value)),
      h("section", { class: "card" }, h("h2", {}, "History: the failover log"), branches(value),
        h("p", { class: "note" }, "A branch begins when a node comes to lead, or starts after a crash. Consumers above its base on another branch roll back.")),
      h("section", { class: "card" }, h("h2", {}, "Followers"), followers(value)),
    ];
  }
  return { title: () => `Feed ${name}, partition ${number}`, topics, view };
}

function compaction(value) {
  const { compaction: told } = value;
  if (!told) return null;
  const of = (plan) => `segments ${plan.first + 1} to ${plan.last + 1}, ${bytes(plan.bytes)}`;
  if (told.failure) return h("p", { class: "error" }, `The last compaction has failed: ${told.failure}`);
  if (told.running) return h("p", {}, `Compacts ${of(told.running)}, for ${seconds(age(told.running, "since_s"))}.`);
  if (told.planned) return h("p", {}, `Next: ${of(told.planned)}.${told.pause_s ? ` Compaction pauses for ${seconds(told.pause_s)}.` : ""}`);
  return h("p", { class: "note" }, "There is nothing to compact.");
}

function followers(value) {
  const columns = [
    { name: "follower", cell: (row) => row.address },
    { name: "connected", cell: (row) => (row.connected ? state("current", "yes") : state("away", "no")) },
    { name: "has it up to", number: true, cell: (row) => count(row.seq) },
    { name: "behind", number: true, cell: (row) => count(row.lag) },
    { name: "last answer", number: true, cell: (row) => (row.since_ack_s === null ? "–" : `${seconds(age(row, "since_ack_s"))} ago`) },
    { name: "votes", cell: (row) => (row.votes ? "yes" : "no") },
  ];
  return table(columns, value.followers_list, { key: (row) => row.placement_id ?? row.address, empty: "No node follows this partition here." });
}
