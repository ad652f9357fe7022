// The curves of all nodes: loss, consensus distance and speed.

import { colour, look } from "./colours.js";
import { Keyed, find, make, setAttribute, setText } from "./dom.js";
import { Plot } from "./plot.js";
import { ANSWERS, NONE, byName, count, number, standing } from "./words.js";

export const MANY = 12; // nodes; with more nodes, only some lines have a colour

const PLOTS = {
  loss: { id: "plot-loss", word: "Loss", key: "loss", newest: (node) => node.loss },
  distance: {
    id: "plot-distance",
    word: "Consensus distance",
    key: "distance",
    newest: (node) => node.consensus_distance,
    range: (_, low, high) => (high > 0 ? window.uPlot.rangeNum(low, high, 0.1, true) : [0, 1]),
  },
  speed: {
    id: "plot-speed",
    word: "Steps per second",
    key: "steps",
    newest: (node) => node.steps_per_s,
    range: (_, low, high) => [0, 1.1 * high || 1],
  },
};

export class Curves {
  /** @param store of the run. `changed` is called when the user highlights a different node. */
  constructor(store, changed) {
    this.store = store;
    this.plots = {};
    for (const [field, { id, range }] of Object.entries(PLOTS)) {
      this.plots[field] = new Plot(find(".plot", find(`#${id}`)), number, { range });
    }
    this.legend = new Keyed(find("#legend"), makeKey, (parts, line) => showKey(parts, line));
    this.select = find("#highlight");
    this.options = new Keyed(this.select, makeOption, () => {});
    this.options.parts.set("", { root: this.select.firstElementChild });
    this.select.addEventListener("change", () => {
      store.selected = this.select.value;
      changed();
    });
    const log = find("#log");
    log.addEventListener("change", () => {
      this.plots.loss.log = log.checked;
      changed();
    });
  }

  /** Show the names of the nodes in the list of *Highlight*, and the legend. */
  showLegend() {
    const { store } = this;
    this.options.show(["", ...store.nodes.map((node) => node.name)], (name) => name);
    if (this.select.value !== store.selected) this.select.value = store.selected;
    const lines = linesOf(store, "loss").filter((line) => line.word);
    lines.sort((one, other) => byName(one.name, other.name));
    this.legend.show(lines, (line) => line.name);
  }

  /** Draw one plot: "loss", "distance" or "speed". */
  draw(field) {
    const { store } = this;
    this.plots[field].show(store.timeline.times, linesOf(store, field), summary(store, PLOTS[field]));
  }
}

/** Return a line for each node. Highlighted lines are last, so they are drawn above the others. */
export function linesOf(store, field, chosen = store.highlighted) {
  const best = store.best?.name;
  const many = store.nodes.length > MANY;
  const lines = store.nodes.map((node, index) => {
    const values = store.timeline.of(node.name)[field];
    const line = { name: node.name, values, rank: 0, word: "", ...looks(node, index, many, best) };
    if (chosen.has(node.name)) {
      Object.assign(line, { width: 3, rank: 3, word: line.word || "highlighted" });
      if (many) Object.assign(line, { stroke: colour("accent"), dash: [] });
    } else if (chosen.size && !line.rank) {
      Object.assign(line, { stroke: colour("faint"), width: 1 });
    }
    return line;
  });
  return lines.sort((one, other) => one.rank - other.rank);
}

function looks(node, index, many, best) {
  if (!many) return { ...look(index), width: 1.75, word: NONE };
  const is = standing(node);
  if (is !== "good") {
    const word = node.verdicts[0]?.kind ?? node.state;
    return { stroke: colour(is), width: 1.75, dash: [5, 3], rank: 1, word };
  }
  if (node.name === best) {
    return { stroke: colour("good"), width: 2.25, dash: [], rank: 2, word: "lowest loss" };
  }
  return { stroke: colour("faint"), width: 1, dash: [] };
}

function summary(store, { word, key, newest }) {
  const told = store.nodes.filter((node) => typeof newest(node) === "number");
  if (store.missing[key]) return `${word}: ${store.missing[key]}.`;
  const answering = told.filter((node) => ANSWERS.has(node.state) && !node.silent_s);
  const known = answering.length ? answering : told;
  if (!known.length) {
    const isOver = !store.through && store.timeline.times.length;
    return `${word}: ${isOver ? "no node reports this value any more" : "no value is known yet"}.`;
  }
  const are = known.every((node) => node.state === "live") ? "live node" : "node";
  const then = answering.length ? "" : " when they last answered";
  known.sort((one, other) => newest(one) - newest(other));
  const [low, high] = [known[0], known.at(-1)];
  const tell = (node) => `${node.name} ${number(newest(node))}`;
  const of = `${word} of ${count(known.length, are)}${then}`;
  return known.length === 1 ? `${of}: ${tell(low)}.` : `${of}: from ${tell(low)} to ${tell(high)}.`;
}

function makeKey() {
  const parts = { swatch: make("span", { class: "swatch" }), name: make("span", { class: "name" }) };
  parts.root = make("li", {}, parts.swatch, parts.name);
  return parts;
}

function showKey({ swatch, name }, line) {
  swatch.style.borderTopColor = line.stroke;
  setAttribute(swatch, "data-dashed", line.dash.length ? "" : null);
  setText(name, line.word === NONE ? line.name : `${line.name} (${line.word})`);
}

function makeOption(name) {
  return { root: make("option", { value: name }, name) };
}
