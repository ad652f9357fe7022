// All that the page knows of the run, in bounded memory.

import { Timeline } from "./timeline.js";
import { ANSWERS, byName } from "./words.js";

const MAX_EVENTS = 500;
const FREQUENT = new Set(["checkpoint", "in_sync", "out_of_sync"]);

export class Store {
  constructor() {
    this.time = 0; // of the newest news, in seconds since the epoch
    this.through = "";
    this.hasEnded = false;
    this.title = "";
    this.nodes = []; // by name
    this.byName = new Map();
    this.edges = [];
    this.groups = []; // names of nodes that average gradients together
    this.missing = {}; // figures that no node has, and why
    this.events = []; // newest first
    this.timeline = new Timeline();
    this.selected = ""; // the node to highlight
    this.pointed = ""; // likewise, as long as the pointer or the focus is on it
    this.numbered = 0;
  }

  /** Begin anew with all that is known. */
  restart(news) {
    this.timeline.clear();
    this.events = [];
    this.update(news);
  }

  /** Take in what is new. */
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
    const saved = new Set(); // of frequent ones, the newest of each node is enough
    const isNewest = (key) => !saved.has(key) && saved.add(key);
    const isKept = ({ kind, about }) => !FREQUENT.has(kind) || isNewest(`${kind} ${about}`);
    this.events = [...fresh, ...this.events].filter(isKept).slice(0, MAX_EVENTS);
  }

  /** Nodes that are to be seen among all others. */
  get highlighted() {
    return new Set([this.pointed, this.selected].filter((name) => this.byName.has(name)));
  }

  /** The live node with the lowest loss, if there is one. */
  get best() {
    let best = null;
    for (const node of this.nodes) {
      const known = ANSWERS.has(node.state) && !node.silent_s && typeof node.loss === "number";
      if (known && (best === null || node.loss < best.loss)) best = node;
    }
    return best;
  }

  /** Whether nodes average gradients, as `together` does. */
  get averages() {
    return this.nodes.some((node) => node.averages);
  }

  count(state) {
    return this.nodes.filter((node) => node.state === state).length;
  }
}
