// The frame of the console: the screen that the address names, the state of the connection, shortcuts, theme and token.

import { ask, setToken, token } from "./api.js";
import { h, show } from "./dom.js";
import { seconds } from "./format.js";
import { Live } from "./live.js";
import { consumer, consumers } from "./consumers.js";
import { feed, feeds, partition } from "./feeds.js";
import { keys } from "./keys.js";
import { overview } from "./overview.js";
import { resume } from "./resume.js";
import { tail } from "./tail.js";

// [title, address, shortcut, the pattern of the address, the screen]. An address may have more than its first part.
const SCREENS = [
  ["Overview", "#/", "1", /^#?\/?$/, overview],
  ["Feeds", "#/feeds", "2", /^#\/feeds$/, feeds],
  ["Consumers", "#/consumers", "3", /^#\/consumers$/, consumers],
  ["Tail", "#/tail", "4", /^#\/tail(?:\/([^/]+))?$/, tail],
  ["Keys", "#/keys", "5", /^#\/keys(?:\/([^/]+))?$/, keys],
  ["Resume", "#/resume", "6", /^#\/resume(?:\/([^/]+))?$/, resume],
  [null, "#/feeds", null, /^#\/feeds\/([^/]+)$/, feed],
  [null, "#/feeds", null, /^#\/feeds\/([^/]+)\/(\d+)$/, partition],
  [null, "#/consumers", null, /^#\/consumers\/([^/]+)$/, consumer],
];
const at = (id) => document.getElementById(id);
const live = new Live(() => draw(), askForToken);
let screen = null;

// Screens

function go() {
  screen?.close?.();
  const address = location.hash || "#/";
  const found = SCREENS.find(([, , , pattern]) => pattern.test(address)) ?? SCREENS[0];
  const parts = address.match(found[3])?.slice(1).map((part) => (part === undefined ? "" : decodeURIComponent(part))) ?? [];
  screen = found[4]({ live, draw, go: (to) => { location.hash = to; } }, ...parts);
  live.watch(screen.topics());
  at("content").replaceChildren(); // what was typed belongs to the screen before
  show(at("nav"), SCREENS.filter(([title]) => title).map(([title, to, shortcut]) => {
    return h("a", { href: to, title: `Shortcut: ${shortcut}`, "aria-current": to === found[1] ? "page" : null }, title);
  }));
  draw();
  scrollTo(0, 0);
}

function draw() {
  if (!screen) return;
  drawLink();
  document.title = `${screen.title()} · Tailrace`;
  show(at("content"), h("h1", {}, screen.title()), screen.view());
}

// The connection

function drawLink() {
  const { state, reason, lostAt, nextAt } = live;
  const isLost = state === "lost" || state === "denied";
  document.documentElement.classList.toggle("is-lost", isLost);
  const words = { connecting: ["idle", "connecting …"], open: ["good", "live"], lost: ["bad", "lost"], denied: ["bad", "no token"] };
  const [kind, word] = words[state];
  show(at("link"), h("span", { class: `state ${kind}` }, word));
  if (!isLost) return show(at("banner"));
  const since = lostAt === null ? "" : ` for ${seconds((performance.now() - lostAt) / 1000)}`;
  const next = nextAt === null ? "" : " It is tried again; what is shown is old.";
  const button = state === "denied"
    ? h("button", { type: "button", onclick: () => askForToken(reason) }, "Give a token")
    : h("button", { type: "button", onclick: () => live.again() }, "Try now");
  return show(at("banner"), `No connection to ${location.host}${since}: ${reason}.${next} `, button);
}

// The token

function askForToken(message) {
  const dialog = at("dialog");
  if (dialog.open) dialog.close();
  const field = h("input", { type: "password", name: "token", autocomplete: "off", required: true, "aria-describedby": "why", "aria-label": "Token" });
  const form = h("form", { method: "dialog", class: "token", onsubmit: () => {
    setToken(field.value.trim());
    live.again();
    screen?.retry?.();
  } },
  h("h2", {}, "A token is needed"),
  h("p", { id: "why", class: token() ? "error" : "note" }, message),
  h("p", { class: "note" }, "It stays in this tab, until you close it."),
  h("label", { class: "grow" }, "Token", field),
  h("p", {}, h("button", { class: "first" }, "Use it"), " ", h("button", { type: "button", onclick: () => dialog.close() }, "Not now")));
  dialog.replaceChildren(form);
  dialog.showModal();
}

// Shortcuts and theme

function showHelp() {
  const rows = [
    ...SCREENS.filter(([title]) => title).map(([title, , shortcut]) => [shortcut, title]),
    ["/", "Go to the first field"], ["p", "Tail: pause, or go on"], ["d", "Dark or light"], ["?", "This list"], ["Esc", "Close"],
  ];
  const dialog = at("dialog");
  dialog.replaceChildren(
    h("h2", {}, "Shortcuts"),
    h("table", {}, h("tbody", {}, rows.map(([key, what]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, what))))),
    h("p", {}, h("button", { type: "button", class: "first", onclick: () => dialog.close() }, "Close")),
  );
  dialog.showModal();
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  at("theme").textContent = name === "dark" ? "Light" : "Dark";
}

function changeTheme() {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("tailrace.theme", name);
  setTheme(name);
}

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || at("dialog").open) return;
  if (/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const chosen = SCREENS.find(([, , shortcut]) => shortcut !== null && shortcut === event.key);
  if (chosen) location.hash = chosen[1];
  else if (event.key === "?") showHelp();
  else if (event.key === "d") changeTheme();
  else if (event.key === "p") screen?.pause?.();
  else if (event.key === "/") {
    event.preventDefault();
    at("content").querySelector("input, textarea, select")?.focus();
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)");
setTheme(document.documentElement.dataset.theme); // theme.js has set it
dark.addEventListener("change", () => localStorage.getItem("tailrace.theme") ?? setTheme(dark.matches ? "dark" : "light"));
at("theme").onclick = changeTheme;
at("help").onclick = showHelp;
addEventListener("keydown", pressed);
addEventListener("hashchange", go);

go();
ask("console").then(() => live.connect(), (error) => (error.status === 401 ? (live.state = "denied", live.reason = error.message, draw(), askForToken(error.message)) : live.connect()));
