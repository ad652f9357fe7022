// The page of one node: its figures, how it spends its time, its loss, its links and its events.

import { colour } from "./colours.js";
import { linesOf } from "./curves.js";
import { Keyed, find, make, setText } from "./dom.js";
import { Events } from "./events.js";
import { makeMatter, mattersOf, showMatter } from "./header.js";
import { ACTIVITIES, linkColumn, textColumn } from "./nodes.js";
import { Plot } from "./plot.js";
import { Table, hiddenWords } from "./table.js";
import { bytes, duration, number, percent, perSecond, sharesWords, stateWords } from "./words.js";

const AGAIN_MS = 2000;
const WORDS = { train: "training", publish: "publishing", wait: "waiting", merge: "merging" };

const FACTS = [
  ["Loss", (node) => number(node.loss), "loss"],
  ["Clock", (node) => number(node.clock, 4), "clock"],
  ["Steps per second", (node) => number(node.steps_per_s), "steps"],
  ["In sync with", (node) => node.in_sync.filter((name) => name !== node.name).join(", ")],
  ["Rounds per second", (node) => number(node.rounds_per_s), "rounds"],
  ["Merges per second", (node) => number(node.merges_per_s), "merges"],
  ["Staleness of its merges", (node) => number(node.staleness), "staleness"],
  ["Consensus distance", (node) => number(node.consensus_distance), "distance"],
  ["Score", (node) => number(node.score)],
  ["Receives", (node) => perSecond(node.received_per_s)],
  ["Sends", (node) => perSecond(node.sent_per_s)],
  ["Reads from memory of peers", (node) => perSecond(node.mapped_per_s), "mapped"],
  ["Memory of snapshots", (_, figures) => bytes(figures.memory_bytes)],
  ["Refused messages and connections", (_, figures) => number(figures.refused)],
  ["Address", (node) => node.endpoint],
  ["Host", (node) => node.host],
  ["Process", (node) => (node.pid ? String(node.pid) : "")],
  ["Algorithm", (node) => node.algorithm],
  ["Topology", (node) => node.topology],
  ["Group", (node) => node.group],
];

const figure = (title, key, words = (value) => number(value)) =>
  textColumn(title, (peer) => peer[key], words, { key, class: "figure", down: true });
const healthWords = (health, peer) => {
  const words = health === "unknown" ? "unknown, nothing fetched yet" : health.replaceAll("_", " ");
  return peer.quarantined ? `${words}, in quarantine` : words;
};
const ago = (value) => (typeof value === "number" ? `${duration(value)} ago` : "never");

const LINKS = [
  linkColumn("Peer"),
  textColumn("Health", (peer) => peer.health, healthWords),
  figure("Latency", "latency_ms", (value) => (typeof value === "number" ? `${number(value)} ms` : "–")),
  figure("Bandwidth", "bandwidth_mbps", (value) => (typeof value === "number" ? `${number(value)} Mbit/s` : "–")),
  figure("Score", "score"),
  figure("Rounds", "rounds"),
  figure("Merges", "merges"),
  figure("Last merged", "merged_s", ago),
  figure("Staleness", "staleness"),
  figure("Received", "bytes_received", bytes),
  figure("Sent", "bytes_sent", bytes),
  figure("Mapped", "bytes_mapped", bytes),
  figure("Last message", "heard_s", ago),
];

// Figures of links that are hidden if the node has none of them, each with the reason.
const UNKNOWN = {
  latency_ms: "no answer was timed",
  bandwidth_mbps: "no snapshot was streamed",
  merged_s: "the node has merged no peer",
  staleness: "the node has merged no peer",
  rounds: "",
  bytes_mapped: "",
};

/** Return the figures that are unknown for all peers of a node, each with the reason. */
function unknownOf(peers) {
  return Object.fromEntries(Object.entries(UNKNOWN).filter(([key, why]) => peers.every((peer) => (why ? peer[key] === null : !peer[key]))));
}

export class NodeView {
  /** @param store of the run. `changed` is called after each answer about the node. */
  constructor(store, changed) {
    Object.assign(this, { store, changed });
    this.name = "";
    this.detail = null;
    this.problem = "";
    this.matters = new Keyed(find("#node-verdicts"), makeMatter, showMatter);
    this.facts = new Keyed(find("#node-facts"), makeFact, ({ value }, fact) => setText(value, fact[1]));
    this.links = new Table(find("#links"), LINKS, "Links from this node to its peers");
    this.events = new Events(find("#own-events"));
    this.budget = new Plot(find("#plot-budget"), percent, { range: () => [0, 1] });
    this.loss = new Plot(find("#plot-own"), number);
    setInterval(() => this.ask(), AGAIN_MS);
  }

  open(name) {
    Object.assign(this, { name, detail: null, problem: "" });
    setText(find("#node-name"), name);
    this.ask();
  }

  close() {
    this.name = "";
  }

  async ask() {
    const { name } = this;
    if (!name || document.hidden || this.asking === name) return;
    this.asking = name;
    try {
      const answer = await fetch(`api/node/${encodeURIComponent(name)}`);
      const told = await answer.json();
      if (name !== this.name) return;
      this.detail = answer.ok ? told : null;
      this.problem = answer.ok ? "" : String(told.error ?? answer.status);
    } catch {
      // The banner shows that the server does not answer.
    } finally {
      this.asking = null;
    }
    this.changed();
  }

  /** Show the state, the problems, the figures, the links and the events of the node. */
  show() {
    const node = this.store.byName.get(this.name);
    const figures = this.detail?.figures ?? {};
    const problem = this.problem || node?.problem || "";
    setText(find("#node-state"), node ? stateWords(node) : "");
    setText(find("#node-problem"), problem);
    find("#node-problem").hidden = !problem;
    this.matters.show(node ? mattersOf(node) : [], (matter) => matter.key);
    const { missing } = this.store;
    const known = FACTS.filter(([, , key]) => !(key in missing));
    const facts = node ? known.map(([title, tell]) => [title, tell(node, figures)]) : [];
    const columns = FACTS.map(([title, , key]) => ({ title, key }));
    setText(find("#about .missing"), hiddenWords({ columns, hidden: missing }));
    this.facts.show(facts.filter(([, value]) => value), ([title]) => title);
    const peers = this.detail?.peers ?? [];
    this.links.show(peers, unknownOf(peers));
    setText(find("#its-links .missing"), hiddenWords(this.links));
    find("#links").parentElement.hidden = !peers.length;
    find("#links").parentElement.nextElementSibling.hidden = peers.length > 0;
    const { events } = this.store;
    this.events.show(events.filter((event) => event.about === this.name || event.node === this.name));
  }

  drawLoss() {
    const { store, name } = this;
    const node = store.byName.get(name);
    const known = `${number(node?.loss)}, drawn in front of the losses of the other nodes`;
    const text = node ? `Loss of ${name}: ${store.missing.loss ?? known}.` : "";
    if (node) this.loss.show(store.timeline.times, linesOf(store, "loss", new Set([name])), text);
  }

  drawBudget() {
    const shares = this.store.byName.get(this.name)?.shares;
    setText(find("#budget-words"), `In the last seconds: ${this.store.missing.wait ?? sharesWords(shares)}.`);
    const rows = this.detail?.budget ?? [];
    const times = rows.map((row) => row[0]);
    const sums = rows.map(() => 0);
    const lines = ACTIVITIES.map((activity, index) => {
      const values = rows.map((row, i) => (row[1 + index] === null ? null : (sums[i] += row[1 + index])));
      const told = (i) => percent(rows[i][1 + index]);
      return { name: WORDS[activity], values, told, fill: colour(activity), stroke: colour(activity) };
    });
    const order = ACTIVITIES.map((activity) => WORDS[activity]).join(", ");
    this.budget.show(times, lines.reverse(), `Shares of the node's time, from the bottom to the top: ${order}.`);
  }
}

function makeFact(title) {
  const value = make("dd", {});
  return { root: make("div", {}, make("dt", {}, title), value), value };
}
