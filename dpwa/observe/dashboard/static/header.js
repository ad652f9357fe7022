// Shows the run in words, the problems of its nodes, and the problems of this page.

import { Keyed, find, make, setAttribute, setText } from "./dom.js";
import { ENDS, at, count, nodeLink, stateWord, syncWords } from "./words.js";

const MOVED_S = 60; // how long the page shows that a different node reports on the run
const SPEAK_MS = 5000; // minimum time between two announcements
const MAX_SPOKEN = 3; // problems in one announcement
const SUMMARY = ["live", "finishing", "finished", "gone", "no answer", "left", "unknown"];

const told = (counts) => counts.filter(([n]) => n).map(([n, word]) => `${n} ${word}`).join(", ");

/** Show the number of nodes in each state, and the node that reports on the run. */
export function showSummary(store) {
  const { nodes } = store;
  const counts = SUMMARY.map((word) => [nodes.filter((node) => stateWord(node) === word).length, word]);
  const parts = [`${count(nodes.length, "node")}: ${told(counts) || "none yet"}`];
  const live = nodes.filter((node) => node.state === "live");
  const sync = ["in sync", "out of sync", "alone"].map((word) => [
    live.filter((node) => syncWords(node).startsWith(word)).length,
    word,
  ]);
  if (told(sync)) parts.push(told(sync));
  const silence = nodes.length ? "no node answers any more" : "no node has answered yet";
  const unheard = store.hasEnded ? "the run has ended" : silence;
  parts.push(store.through ? `reported by ${store.through}` : unheard);
  setText(find("#summary"), parts.join(" · "));
  setText(find("#title"), store.title);
}

/** Show for a minute that a different node reports on the run. */
export function showMoved(store) {
  const moved = store.events.find((event) => !event.node && event.kind in ENDS);
  const isNew = moved && store.time - moved.time < MOVED_S;
  show(find("#moved"), isNew ? `${moved.about} ${ENDS[moved.kind]}: ${moved.text} (since ${at(moved.time)}).` : "");
}

/** Show that the server of this page does not answer. */
export function showLost(stream) {
  let text = "";
  if (stream.problem === "401" || stream.problem === "403") {
    text = "This page needs a token. Open the address with ?token=… that `dpwa dashboard` has printed.";
  } else if (stream.lostAt !== null) {
    const since = stream.lostAt / 1000;
    const reason = stream.problem ? ` (the server answers ${stream.problem})` : "";
    text = `No connection to the dashboard's server since ${at(since)}${reason}. The page shows the run as it was then, and tries again.`;
  }
  show(find("#lost"), text);
  document.body.classList.toggle("stale", stream.lostAt !== null);
}

function show(banner, text) {
  setText(banner, text);
  banner.hidden = !text;
}

/** The list of all problems, the worst first. New problems are announced to screen readers. */
export class Attention {
  constructor() {
    const section = find("#attention");
    this.section = section;
    this.list = new Keyed(find("ul", section), makeMatter, showMatter);
    this.empty = find(".empty", section);
    this.known = null; // keys of the problems that were shown before; null: none was shown yet
    this.unspoken = [];
    this.spokenAt = 0;
  }

  show(nodes) {
    const matters = nodes.flatMap(mattersOf).sort((one, other) => rank(one) - rank(other));
    this.list.show(matters, (matter) => matter.key);
    this.empty.hidden = matters.length > 0 || !nodes.length;
    setAttribute(this.section, "data-calm", matters.length ? null : "");
    const keys = new Set(matters.map((matter) => matter.key));
    if (this.known) this.unspoken.push(...matters.filter((matter) => !this.known.has(matter.key)));
    this.known = keys;
    this.unspoken = this.unspoken.filter((matter) => keys.has(matter.key));
    this.speak();
  }

  speak() {
    if (!this.unspoken.length || Date.now() - this.spokenAt < SPEAK_MS) return;
    const told = this.unspoken.slice(0, MAX_SPOKEN).map(({ name, text }) => `${name} ${text}.`);
    const more = this.unspoken.length - told.length;
    if (more) told.push(`The list has ${count(more, "more problem")}.`);
    setText(find("#announced"), told.join(" "));
    this.unspoken = [];
    this.spokenAt = Date.now();
  }
}

const rank = (matter) => (matter.severity === "bad" ? 0 : 1);

/** Return the problems of a node. */
export function mattersOf(node) {
  const { name } = node;
  const matters = node.verdicts.map((verdict) => ({ ...verdict, name, key: `${verdict.kind} ${name}` }));
  if (node.state === "unknown" && node.problem) {
    matters.push({ name, key: `problem ${name}`, kind: "unknown", severity: "odd", text: `has not answered yet: ${node.problem}` });
  }
  return matters;
}

export function makeMatter() {
  const parts = {
    badge: make("span", { class: "badge" }),
    name: make("a", { class: "name" }),
    text: make("span", {}),
  };
  parts.root = make("li", {}, parts.badge, make("span", {}, parts.name, " ", parts.text));
  return parts;
}

export function showMatter(parts, matter) {
  setAttribute(parts.root, "data-standing", matter.severity);
  setText(parts.badge, matter.kind);
  setText(parts.name, matter.name);
  setAttribute(parts.name, "href", nodeLink(matter.name));
  setText(parts.text, matter.text);
}
