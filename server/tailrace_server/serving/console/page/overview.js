// The first screen: whether everything is moving, and if not, what is stuck, since when and why.

import { figures, h, isBad, state, table } from "./dom.js";
import { bytes, bytesRate, count, rate, seconds } from "./format.js";
import { age, lag } from "./live.js";
import { sparkline } from "./pictures.js";

const SAMPLES_MAX = 120;
const WORDS = {
  moving: "Everything is moving", waiting: "Something waits", stuck: "Something is stuck", failed: "This node has failed",
};
const samples = []; // of the rate of writes, in the order in which they came
let sampled = null;

export function overview({ live }) {
  function view() {
    const [node, feeds, consumers] = live.values;
    if (!node) return h("p", { class: "muted" }, live.failures[0]?.message ?? "Loading …");
    keepSample(node.totals);
    return [
      verdict(node),
      node.problems.length ? problems(node) : null,
      h("section", { class: "card" }, h("h2", {}, "This node"), about(node)),
      h("div", { class: "grid" },
        node.members.length ? h("section", { class: "card" }, h("h2", {}, "Members"), members(node)) : null,
        node.replicas.length ? h("section", { class: "card" }, h("h2", {}, "Who follows this node"), replicas(node)) : null,
        h("section", { class: "card" }, h("h2", {}, h("a", { href: "#/feeds" }, "Feeds")), feedRows(feeds)),
        h("section", { class: "card" }, h("h2", {}, h("a", { href: "#/consumers" }, "Slowest consumers")), consumerRows(consumers))),
    ];
  }
  const topics = () => [{ topic: "overview" }, { topic: "feeds", limit: 8 }, { topic: "consumers", limit: 8 }];
  return { title: () => "Overview", topics, view };
}

function keepSample(totals) {
  if (totals === sampled || totals.mutations_rate === null) return;
  sampled = totals;
  samples.push(totals.mutations_rate);
  if (samples.length > SAMPLES_MAX) samples.shift();
}

function verdict(node) {
  const most = node.problems[0];
  return h("section", { class: `card verdict ${node.state}`, id: "verdict" },
    h("strong", { role: "status" }, WORDS[node.state] ?? node.state), // told aloud when it changes; the ages are not
    h("span", {}, most ? told(most, node.problems.length + node.problems_more) : node.doing || `${count(node.totals.feeds)} feeds, ${count(node.totals.consumers)} consumers`));
}

// Some texts name what they are about by themselves.
function told(problem, all) {
  const about = problem.text.startsWith(problem.subject) ? "" : `${problem.subject} ${problem.name}: `;
  const when = problem.since_s === null ? "" : ` (for ${seconds(age(problem, "since_s"))})`;
  return about + problem.text + when + (all > 1 ? `; and ${count(all - 1)} more` : "");
}

function problems(node) {
  const columns = [
    { name: "state", cell: (row) => state(row.state) },
    { name: "what", cell: what },
    { name: "why", cell: (row) => row.text, wide: true },
    { name: "for", number: true, cell: (row) => seconds(age(row, "since_s")) },
  ];
  return h("section", { class: "card" }, h("h2", {}, "What is wrong"),
    table(columns, node.problems, { key: (row) => `${row.subject} ${row.name} ${row.text}` }),
    node.problems_more ? h("p", { class: "muted" }, `and ${count(node.problems_more)} more`) : null);
}

// A problem leads to what it is about, if there is a screen for it.
function what({ subject, name }) {
  const parts = name.split("/");
  const to = subject === "consumer" ? `#/consumers/${encodeURIComponent(name)}`
    : subject === "partition" && parts.length === 2 ? `#/feeds/${encodeURIComponent(parts[0])}/${parts[1]}` : null;
  return to && name ? h("a", { href: to }, `${subject} ${name}`) : `${subject} ${name}`;
}

function about(node) {
  const { totals } = node;
  return [
    figures([
      ["role", state(node.role, node.role)],
      ["address", node.listening ?? "–"],
      ["leader, term", `${node.leader || "none"}, ${node.term}`],
      ["written", rate(totals.mutations_rate)],
      ["bytes in", bytesRate(totals.written_bytes_rate)],
      ["bytes out", bytesRate(totals.sent_bytes_rate)],
      ["mutations", count(totals.mutations)],
      ["feeds, partitions", `${count(totals.feeds)}, ${count(totals.partitions)}`],
      ["consumers, streams", `${count(totals.consumers)}, ${count(totals.streams)}`],
      ["memory", `${bytes(totals.memory_bytes)} of ${bytes(totals.memory_bytes_max)}`],
      ["segments", `${count(totals.segments)}, ${bytes(totals.segment_bytes)}`],
      ["journal", bytes(totals.journal_bytes)],
      ["free on disk", bytes(totals.free_bytes)],
      ["default level", node.default_level],
      ["up for", seconds(age(node, "uptime_s"))],
      ["software", node.software],
    ]),
    samples.length > 1 ? written() : null,
    node.members.length ? h("p", { class: "note" }, `Promotion: ${node.promotion}`) : null,
  ];
}

function written() {
  return h("div", {},
    h("p", { class: "muted" }, `Mutations written per second, newest at the right. The top line is ${rate(Math.max(...samples, 1))}.`),
    sparkline(samples, "mutations written per second"));
}

function members(node) {
  const columns = [
    { name: "member", cell: (row) => (row.is_self ? h("strong", {}, `${row.name} (this node)`) : row.name) },
    { name: "state", cell: (row) => state(row.state) },
    { name: "for", number: true, cell: (row) => seconds(age(row, "since_s")) },
    { name: "term", number: true, cell: (row) => row.term ?? "–" },
    { name: "votes", cell: (row) => (row.votes === null ? "–" : row.votes ? "yes" : "no") },
    { name: "software", cell: (row) => row.software ?? "–" },
    { name: "reason", cell: (row) => row.reason, wide: true },
  ];
  return table(columns, node.members, { key: (row) => row.name, rowClass: (row) => (isBad(row.state) ? "bad" : null) });
}

function replicas(node) {
  const columns = [
    { name: "replica", cell: (row) => row.address },
    { name: "state", cell: (row) => state(row.state) },
    { name: "for", number: true, cell: (row) => seconds(age(row, "since_s")) },
    { name: "lag", number: true, cell: (row) => seconds(lag(row)) },
    { name: "mutations behind", number: true, cell: (row) => count(row.lag_mutations) },
    { name: "reason", cell: (row) => row.reason, wide: true },
  ];
  return table(columns, node.replicas, { key: (row) => row.placement_id, rowClass: (row) => (isBad(row.state) ? "bad" : null) });
}

function feedRows(value) {
  const columns = [
    { name: "feed", cell: (row) => h("a", { href: `#/feeds/${encodeURIComponent(row.name)}` }, row.name) },
    { name: "state", cell: (row) => state(row.state) },
    { name: "written", number: true, cell: (row) => rate(row.mutations_rate) },
    { name: "slowest consumer", number: true, cell: (row) => (row.consumers ? seconds(row.lag_s) : "no consumer") },
  ];
  if (!value) return h("p", { class: "muted" }, "Loading …");
  return [
    table(columns, value.feeds, { key: (row) => row.name, empty: "There is no feed yet: `tailrace feed create NAME` makes one." }),
    value.total > value.feeds.length ? h("p", {}, h("a", { href: "#/feeds" }, `all ${count(value.total)} feeds`)) : null,
  ];
}

function consumerRows(value) {
  const columns = [
    { name: "consumer", cell: (row) => h("a", { href: `#/consumers/${encodeURIComponent(row.id)}` }, row.name || row.peer) },
    { name: "feed", cell: (row) => row.feed },
    { name: "state", cell: (row) => state(row.state) },
    { name: "lag", number: true, cell: (row) => seconds(lag(row)) },
  ];
  return value ? table(columns, value.consumers, { key: (row) => row.id, empty: "No consumer is connected." }) : h("p", { class: "muted" }, "Loading …");
}
