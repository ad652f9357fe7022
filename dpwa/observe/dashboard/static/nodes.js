// The table of all nodes, with one row for each node.

import { find, make, setAttribute, setText } from "./dom.js";
import { Table, hiddenWords } from "./table.js";
import { nodeLink, number, perSecond, sharesWords, sign, standing, stateWords } from "./words.js";

export const ACTIVITIES = ["train", "publish", "wait", "merge"];
const TOLD = new Set(["gone", "no answer", "finished", "left", "out of sync", "alone"]); // these are in the state
const ORDER = { silent: 0, unknown: 1, left: 2, live: 3, finishing: 4, finished: 5 };

/** Return the table of the nodes. */
export function nodesTable() {
  return new Table(find("#nodes table"), COLUMNS, "Nodes of the run. The button in the head of a column sorts the table by this column");
}

/** Show all nodes, and below the table why columns are missing. */
export function showNodes(table, { nodes, missing }) {
  table.show(nodes.map((node) => ({ ...node, standing: standing(node) })), missing);
  setText(find("#nodes .missing"), hiddenWords(table));
  find("#nodes .shares").hidden = "wait" in missing;
}

/** Return a column whose cells have a text. */
export function textColumn(title, value, words, more = {}) {
  return { title, value, update: (cell, item) => setText(cell, words(value(item), item)), ...more };
}

const figure = (title, key, field, words = (value) => number(value)) =>
  textColumn(title, (node) => node[field], words, { key, class: "figure", down: true });

/** Return a column of links to nodes. */
export const linkColumn = (title) => ({
  title,
  class: "name",
  value: (item) => item.name,
  create: (cell) => {
    const link = make("a", {});
    cell.append(link);
    return { link };
  },
  update: (_, item, { link }) => {
    setText(link, item.name);
    setAttribute(link, "href", nodeLink(item.name));
  },
});

const state = {
  title: "State",
  value: (node) => ORDER[node.state] + (node.verdicts.length ? 0 : 0.5),
  create: (cell) => {
    const parts = { mark: make("span", { class: "mark", "aria-hidden": "true" }), text: make("span", {}) };
    cell.append(make("span", { class: "state" }, parts.mark, parts.text));
    return parts;
  },
  update: (_, node, { mark, text }) => {
    setAttribute(mark, "data-state", node.state);
    setAttribute(mark, "data-standing", node.standing);
    setText(mark, sign(node));
    if (node.in_sync.length > 1) setAttribute(mark, "title", `with ${node.in_sync.filter((name) => name !== node.name).join(", ")}`);
    const kinds = node.verdicts.map((verdict) => verdict.kind).filter((kind) => !TOLD.has(kind));
    setText(text, [stateWords(node), ...kinds].join(", "));
    setAttribute(text, "title", node.verdicts.map((verdict) => verdict.text).join(". ") || null);
  },
};

const shares = {
  title: "Time",
  key: "wait",
  value: (node) => node.shares?.train,
  create: (cell) => {
    const bars = ACTIVITIES.map((activity) => make("span", { class: activity }));
    const box = make("span", { class: "bars", role: "img" }, ...bars);
    cell.append(box);
    return { bars, box };
  },
  update: (_, node, { bars, box }) => {
    setAttribute(box, "aria-label", sharesWords(node.shares));
    setAttribute(box, "title", sharesWords(node.shares));
    ACTIVITIES.forEach((activity, index) => {
      const width = `${Math.round(100 * (node.shares?.[activity] ?? 0))}%`;
      if (bars[index].style.width !== width) bars[index].style.width = width;
    });
  },
};

const COLUMNS = [
  linkColumn("Node"),
  state,
  figure("Loss", "loss", "loss"),
  figure("Clock", "clock", "clock", (value) => number(value, 4)),
  figure("Steps", "steps", "taken"),
  figure("Steps/s", "steps", "steps_per_s"),
  figure("Rounds/s", "rounds", "rounds_per_s"),
  figure("Merges/s", "merges", "merges_per_s"),
  shares,
  figure("Staleness", "staleness", "staleness"),
  figure("Distance", "distance", "consensus_distance"),
  figure("Received", "in", "received_per_s", perSecond),
  figure("Sent", "out", "sent_per_s", perSecond),
  figure("Mapped", "mapped", "mapped_per_s", perSecond),
  figure("Score", "score", "score"),
];
