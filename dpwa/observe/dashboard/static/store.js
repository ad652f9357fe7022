// The store holds all data of the run that the page has, in bounded memory.

import { Timeline } from "./timeline.js";
import { ANSWERS, byName } from "./words.js";

const MAX_EVENTS = 500;
const FREQUENT = new Set(["checkpoint", "in_sync", "out_of_sync"]);

export class Store {
  constructor() {
    this.time = 0; // time of the newest update, in seconds since the epoch
    this.through = "";
    this.hasEnded = false;
    this.title = "";
    this.nodes = []; // in natural order of their names
    this.byName = new Map();
    this.edges = [];
    this.groups = []; // names of nodes that average gradients together
    this.missing = {}; // keys of the figures that no node has, each with the reason
    this.events = []; // newest first
    this.timeline = new Timeline();
    this.selected = ""; // name of the node that the user chose to highlight
    this.pointed = ""; // name of the node under the pointer, or with the focus
    this.numbered = 0;
  }

  /** Replace all data by a snapshot of the run. */
  restart(news) {
    this.timeline.clear();
    this.events = [];
    this.update(news);
  }

  /** Add an update of the run. */
  update(news) {
    this.time = news.time;
    this.through = news.through;
    this.hasEnded = news.has_ended;
    this.title = news.title;
    this.nodes = [...news.nodes].sort((one, other) => byName(one.name, other.name));
    this.byName = new Map(this.nodes.map((node) => [node.name, node]));
    this.edges = news.edges;
    this.groups = news.groups;
    this.missing = news.missing;
    this.timeline.add(news.points);
    this.timeline.keep(this.byName);
    const fresh = [...news.events].sort((one, other) => other.time - one.time);
    for (const event of fresh) event.key = ++this.numbered;
    const saved = new Set(); // of each frequent kind, only the newest event of each node stays
    const isNewest = (key) => !saved.has(key) && saved.add(key);
    const isKept = ({ kind, about }) => !FREQUENT.has(kind) || isNewest(`${kind} ${about}`);
    this.events = [...fresh, ...this.events].filter(isKept).slice(0, MAX_EVENTS);
  }

  /** The names of the highlighted nodes. */
  get highlighted() {
    return new Set([this.pointed, this.selected].filter((name) => this.byName.has(name)));
  }

  /** The live node with the lowest loss, or null if there is none. */
  get best() {
    let best = null;
    for (const node of this.nodes) {
      const known = ANSWERS.has(node.state) && !node.silent_s && typeof node.loss === "number";
      if (known && (best === null || node.loss < best.loss)) best = node;
    }
    return best;
  }

  /** Whether any node averages gradients, as `together` does. */
  get averages() {
    return this.nodes.some((node) => node.averages);
  }
}
