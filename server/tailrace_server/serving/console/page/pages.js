// The order of a table by a column, and the way through a long list.

import { h } from "./dom.js";
import { count } from "./format.js";

// Returns what `table` needs to sort by the column that was clicked; "" leaves the order of the node.
export function sorter(draw, by, down) {
  const sorted = { by, down };
  sorted.change = (name) => {
    sorted.down = sorted.by === name ? !sorted.down : false;
    sorted.by = name;
    draw();
  };
  return sorted;
}

// Returns the buttons for the rows before and after those that are shown; null if all are shown.
export function pages(first, shown, total, limit, turn) {
  if (total <= shown && first === 0) return null;
  return h("p", { class: "pages" },
    h("button", { type: "button", disabled: first === 0, onclick: () => turn(Math.max(first - limit, 0)) }, "Before"),
    h("button", { type: "button", disabled: first + shown >= total, onclick: () => turn(first + limit) }, "Next"),
    h("span", { class: "muted" }, shown ? `${count(first + 1)} to ${count(first + shown)} of ${count(total)}` : `none of ${count(total)}`));
}
