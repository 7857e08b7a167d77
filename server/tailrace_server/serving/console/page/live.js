// The live channel: topics that are watched, their values as they change, and the loss of the node and its return.
//
//   connecting ──open──> open ──close, or silence──> lost ──after a pause──> connecting
//                                                     └── 401 ──> denied ──a token──> connecting

import { ask, closeSocket, openSocket } from "./api.js";

const PROTOCOL = "tailrace.console.v1";
const PAUSE_MS_MAX = 10000;
const LISTS = { feeds: ["feeds", "name"], feed: ["states", "id"], consumers: ["consumers", "id"], consumer: ["partitions", "id"] };

const arrived = new WeakMap(); // when each object came: ages count up from there

function stamp(value, now) {
  if (typeof value !== "object" || value === null) return;
  arrived.set(value, now);
  for (const member of Object.values(value)) stamp(member, now);
}

// Returns an age in seconds as it is now: nodes do not send what only grows older.
export function age(object, name) {
  const value = object[name];
  if (value === null || value === undefined) return null;
  return value + (performance.now() - (arrived.get(object) ?? performance.now())) / 1000;
}

// A lag of zero stays; another one grows until the node tells otherwise.
export function lag(object) {
  return object.lag_s > 0 && object.state !== "current" ? age(object, "lag_s") : object.lag_s;
}

export class Live {
  constructor(changed, denied) {
    this.state = "connecting";
    this.reason = "";
    this.lostAt = null;
    this.nextAt = null;
    this.values = []; // by the place of the topic
    this.failures = [];
    this._changed = changed;
    this._denied = denied;
    this._topics = [];
    this._watch = 0;
    this._tries = 0;
    this._socket = null;
    this._heard = 0;
    this._silenceMs = 15000;
    setInterval(() => this._tick(), 1000);
  }

  // Watches these topics from now on. Values of the same topics stay.
  watch(topics) {
    const before = new Map(this._topics.map((topic, index) => [JSON.stringify(topic), index]));
    const kept = topics.map((topic) => this.values[before.get(JSON.stringify(topic))]);
    [this._topics, this.values, this.failures] = [topics, kept, []];
    this._send();
  }

  connect() {
    if (this._socket) return;
    const socket = openSocket("live", PROTOCOL);
    this._socket = socket;
    this._heard = performance.now();
    this._watch = 0;
    socket.onopen = () => this._send();
    socket.onmessage = (event) => socket === this._socket && this._took(JSON.parse(event.data));
    socket.onclose = (event) => socket === this._socket && this._lost(event.reason, event.code);
  }

  again() {
    this._drop();
    this._tries = 0;
    this.connect();
  }

  _send() {
    if (this._socket?.readyState !== WebSocket.OPEN) return;
    this._watch += 1;
    this._socket.send(JSON.stringify({ watch: this._topics }));
  }

  _took(message) {
    const now = performance.now();
    this._heard = now;
    if (message.type === "hello") {
      this._silenceMs = message.beat_s * 3000;
      [this.state, this.reason, this.lostAt, this.nextAt, this._tries] = ["open", "", null, null, 0];
      this._changed();
    }
    if (message.type === "error") this.reason = message.message;
    if (message.watch !== this._watch) return;
    const { index } = message;
    if (message.type === "value") {
      stamp(message.value, now);
      this.values[index] = message.value;
      this.failures[index] = undefined;
    } else if (message.type === "changes" && this.values[index]) {
      this._merge(this.values[index], message, now);
    } else if (message.type === "failed") {
      this.failures[index] = message;
      this.values[index] = undefined;
    }
    this._changed();
  }

  _merge(value, message, now) {
    stamp(message.set, now);
    Object.assign(value, message.set);
    arrived.set(value, now);
    const [list, key] = LISTS[message.topic] ?? [];
    if (!list) return;
    const rows = new Map((value[list] ?? []).map((row) => [row[key], row]));
    for (const row of message.rows ?? []) {
      stamp(row, now);
      rows.set(row[key], row);
    }
    for (const gone of message.gone ?? []) rows.delete(gone);
    value[list] = message.order ? message.order.map((name) => rows.get(name)).filter(Boolean) : [...rows.values()];
  }

  _drop() {
    const socket = this._socket;
    this._socket = null;
    if (socket) closeSocket(socket);
  }

  async _lost(reason, code) {
    this._drop();
    const wasOpen = this.state === "open";
    if (wasOpen || this.lostAt === null) this.lostAt = performance.now();
    this.state = "lost";
    this._tries += 1;
    const pause = Math.min(500 * 2 ** (this._tries - 1), PAUSE_MS_MAX);
    this.nextAt = performance.now() + pause;
    this.reason = reason || this.reason || "the connection was closed";
    this._changed();
    // A browser does not tell why a WebSocket was refused: a plain request does.
    try {
      await ask("console");
      if (code === 1001 || wasOpen) this.reason = reason || "the connection was closed; the node answers again";
    } catch (error) {
      this.reason = error.message;
      if (error.status === 401) {
        this.state = "denied";
        this.nextAt = null;
        this._denied(error.message);
      }
    }
    this._changed();
  }

  _tick() {
    const now = performance.now();
    if (this.state === "open" && now - this._heard > this._silenceMs) {
      this._lost(`the node has said nothing for ${Math.round((now - this._heard) / 1000)} s`, 0);
    } else if (this.state === "lost" && this.nextAt !== null && now >= this.nextAt && !this._socket) {
      this.connect();
    } else if (this._socket?.readyState === WebSocket.CONNECTING && now - this._heard > 10000) {
      this._lost("the node does not answer: it has stopped, or the network is cut", 0);
    }
    this._changed();
  }
}
