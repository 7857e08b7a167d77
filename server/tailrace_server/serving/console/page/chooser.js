// The field for a feed's name, with the names that there are.

import { ask } from "./api.js";
import { h } from "./dom.js";

let names = [];

// Asks for the first names, and draws again when they are here.
export function loadNames(draw) {
  ask("feeds?limit=200").then((value) => {
    names = value.feeds.map((feed) => feed.name);
    draw();
  }, () => {});
}

export function chooser(name, choose) {
  return h("label", {}, "Feed",
    h("input", { name: "feed", value: name, list: "feeds", required: true, onchange: (event) => choose(event.target.value) }),
    h("datalist", { id: "feeds" }, names.map((one) => h("option", { value: one }))));
}
