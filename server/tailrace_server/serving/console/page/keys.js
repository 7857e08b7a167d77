// One key: its present value, and the older versions that the node still has.

import { ask } from "./api.js";
import { chooser, loadNames } from "./chooser.js";
import { h, table } from "./dom.js";
import { bytes, count, short, text, time } from "./format.js";

export function keys({ draw, go }, name = "") {
  const asked = { key: "", kind: "text" };
  let found = null;
  let failure = "";
  let isAsking = false;

  async function look() {
    let key;
    try {
      key = asked.kind === "text" ? encodeURIComponent(asked.key) : fromHex(asked.key);
    } catch (error) {
      [found, failure] = [null, error.message];
      return draw();
    }
    isAsking = true;
    draw();
    try {
      [found, failure] = [await ask(`feeds/${encodeURIComponent(name)}/key?versions=100&key=${key}`), ""];
    } catch (error) {
      [found, failure] = [null, error.message];
    }
    isAsking = false;
    return draw();
  }

  const columns = [
    { name: "seq", number: true, cell: (row) => count(row.seq) },
    { name: "time", cell: (row) => time(row.time_us) },
    { name: "value", wide: true, cell: (row) => (row.deleted ? h("em", {}, "deleted") : row.value === null ? `${bytes(row.value_bytes)}: too long to show` : h("code", {}, short(text(row.value, row.value_encoding), 4000))) },
    { name: "bytes", number: true, cell: (row) => (row.deleted ? "" : count(row.value_bytes)) },
    { name: "", cell: (row) => (row.is_newest ? "newest" : "") },
  ];

  function view() {
    return [
      h("form", { class: "bar-form", role: "search", onsubmit: (event) => { event.preventDefault(); look(); } },
        chooser(name, (chosen) => chosen && go(`#/keys/${encodeURIComponent(chosen)}`)),
        h("label", { class: "grow" }, "Key", h("input", { name: "key", required: true, oninput: (event) => { asked.key = event.target.value; } })),
        h("label", {}, "as", h("select", { onchange: (event) => { asked.kind = event.target.value; } }, h("option", { value: "text" }, "text"), h("option", { value: "hex" }, "hexadecimal digits"))),
        h("button", { class: "first", disabled: !name || isAsking }, "Look up")),
      failure ? h("p", { class: "card error", role: "alert" }, failure) : null,
      found ? h("section", { class: "card" },
        h("h2", {}, h("code", {}, text(found.key, found.key_encoding)), ` in partition ${found.partition}`),
        found.found ? null : h("p", {}, found.deleted ? "The key is deleted." : "The feed has no row of this key."),
        found.note ? h("p", { class: "note" }, found.note) : null,
        table(columns, found.versions, { key: (row) => String(row.seq), empty: "There is no version." }),
        found.more ? h("p", { class: "muted" }, "There are older versions.") : null) : null,
    ];
  }

  loadNames(draw);
  return { title: () => (name ? `Keys of ${name}` : "Keys"), topics: () => [], view };
}

function fromHex(digits) {
  const clean = digits.replace(/^0x/, "").replaceAll(" ", "");
  if (clean.length % 2 || /[^0-9a-fA-F]/.test(clean)) throw new Error("Give an even number of hexadecimal digits, such as 00ff.");
  return clean.replace(/../g, "%$&");
}
