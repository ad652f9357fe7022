// The graph has the nodes on a circle. A line is a merge of the last seconds, and a shape joins the
// nodes that average gradients together.

import { colour } from "./colours.js";
import { Keyed, find, make, makeSvg, setAttribute, setText } from "./dom.js";
import { NONE, duration, listed, nodeLink, number, sign, standing, stateWords } from "./words.js";

const SIZE = 640; // of the drawing, in its own units
const RADIUS = 232; // of the circle
const FEW = 16; // nodes; with more nodes, names stand along the radius, and lines have no arrows
const CROWD = 40; // lines; with more lines, each line is fainter
const BEND = 0.45; // how far a line bends toward the center: 1 is a straight line, 0 is the center
const LONGEST = 14; // letters of a name
// The line of an older merge is weaker. `up_to` is the maximum age in seconds.
const AGES = [
  { up_to: Infinity, name: "faint", alpha: 0.35, width: 1 },
  { up_to: 4, name: "accent", alpha: 0.45, width: 1.4 },
  { up_to: 1, name: "accent", alpha: 0.9, width: 2.2 },
];

export class Topology {
  /** @param store of the run. `changed` is called when the user points at a different node. */
  constructor(store, changed) {
    Object.assign(this, { store, changed });
    this.readout = find("#topology .readout");
    this.heading = find("#topology-head");
    this.caption = find("#topology figcaption");
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.svg = makeSvg("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, role: "group" });
    this.box = find("#topology .graph");
    this.box.append(this.canvas, this.svg);
    this.nodes = new Keyed(this.svg, (name) => this.make(name), (parts, item) => showNode(parts, item));
    this.stop = ""; // name of the node that the Tab key focuses
    this.svg.addEventListener("keydown", (event) => this.walk(event));
    new ResizeObserver(() => this.drawEdges()).observe(this.box);
  }

  make(name) {
    const root = makeSvg("a", { href: nodeLink(name), class: "node" });
    const parts = {
      root,
      halo: makeSvg("circle", { class: "halo" }),
      disc: makeSvg("circle", { class: "disc" }),
      sign: makeSvg("text", { class: "sign", "text-anchor": "middle", dy: "0.36em" }),
      label: makeSvg("text", { class: "label", dy: "0.35em" }),
    };
    root.append(parts.halo, parts.disc, parts.sign, parts.label);
    for (const kind of ["mouseenter", "focus"]) root.addEventListener(kind, () => this.point(name));
    for (const kind of ["mouseleave", "blur"]) root.addEventListener(kind, () => this.point(""));
    root.addEventListener("focus", () => this.stopAt(name));
    return parts;
  }

  point(name) {
    this.store.pointed = name;
    this.changed();
  }

  stopAt(name) {
    this.stop = name;
    for (const [other, { root }] of this.nodes.parts) {
      setAttribute(root, "tabindex", other === name ? 0 : -1);
    }
  }

  walk(event) {
    const names = this.store.nodes.map((node) => node.name);
    const here = names.indexOf(this.stop);
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    let to = here + steps[event.key];
    if (event.key === "Home") to = 0;
    if (event.key === "End") to = names.length - 1;
    if (Number.isNaN(to)) return;
    event.preventDefault();
    this.nodes.parts.get(names.at(to % names.length))?.root.focus();
  }

  show() {
    const { nodes, highlighted, byName } = this.store;
    this.places = places(nodes);
    const items = nodes.map((node) => ({
      node,
      place: this.places.get(node.name),
      few: nodes.length <= FEW,
      marked: highlighted.has(node.name),
    }));
    this.nodes.show(items, (item) => item.node.name);
    if (!byName.has(this.stop)) this.stopAt(nodes[0]?.name ?? "");
    else this.stopAt(this.stop);
    setAttribute(this.box, "data-many", nodes.length > FEW ? "" : null);
    setAttribute(this.svg, "aria-label", this.summary());
    setText(this.readout, this.told());
    setText(this.heading, this.store.averages ? "Nodes in sync, and merges" : "Merges between nodes");
    setText(this.caption, caption(this.store));
    this.drawEdges();
  }

  summary() {
    const { nodes, edges, groups } = this.store;
    const merging = new Set(edges.map((edge) => edge.to)).size;
    const inSync = groups.map((names) => `. In sync: ${names.join(", ")}`).join("");
    return `${nodes.length} nodes on a circle. ${merging} of them have merged in the last 15 s${inSync}`;
  }

  told() {
    const { pointed, selected, byName, edges } = this.store;
    const node = byName.get(pointed) ?? byName.get(selected);
    if (!node) return "Point at a node to see its figures.";
    const newest = edges
      .filter((edge) => edge.to === node.name)
      .reduce((one, other) => (one && one.age_s <= other.age_s ? one : other), null);
    const merged = newest ? `, merged ${newest.from} ${duration(newest.age_s)} ago` : "";
    const speed = node.steps_per_s === null ? NONE : `${number(node.steps_per_s)} steps/s`;
    const others = node.in_sync.filter((name) => name !== node.name);
    const mates = others.length ? ` with ${listed(others)}` : "";
    return `${node.name}: ${stateWords(node)}${mates}, loss ${number(node.loss)}, ${speed}${merged}`;
  }

  drawEdges() {
    const { canvas, box, store, places: known } = this;
    const pixels = Math.round(box.clientWidth * devicePixelRatio);
    if (!pixels || !known) return;
    // A new canvas has 300 x 150 pixels, so it may already have the right width, but not the height.
    if (canvas.height !== pixels) canvas.width = canvas.height = pixels;
    const context = canvas.getContext("2d");
    context.setTransform(pixels / SIZE, 0, 0, pixels / SIZE, 0, 0);
    context.clearRect(0, 0, SIZE, SIZE);
    const few = store.nodes.length <= FEW;
    const marked = store.highlighted;
    const edges = store.edges.filter((edge) => known.has(edge.from) && known.has(edge.to));
    store.groups.forEach((names) => shape(context, names.map((name) => known.get(name)).filter(Boolean)));
    const crowd = marked.size ? 1 : Math.max(0.06, Math.min(1, CROWD / edges.length));
    AGES.forEach((age, index) => {
      const newer = AGES[index + 1]?.up_to ?? 0;
      const ofAge = edges.filter((edge) => edge.age_s <= age.up_to && edge.age_s > newer);
      const seen = (edge) => !marked.size || marked.has(edge.from) || marked.has(edge.to);
      stroke(context, known, ofAge.filter(seen), age, age.alpha * crowd, few || marked.size > 0);
      stroke(context, known, ofAge.filter((edge) => !seen(edge)), age, 0.06, false);
    });
  }
}

/** Return the coordinates, the angle and the size of each node, by its name. */
function places(nodes) {
  const size = nodes.length <= FEW ? 15 : Math.max(4, Math.min(11, (0.72 * Math.PI * RADIUS) / nodes.length));
  return new Map(
    nodes.map((node, index) => {
      const angle = (2 * Math.PI * index) / nodes.length - Math.PI / 2;
      const radius = nodes.length > 1 ? RADIUS : 0;
      const x = SIZE / 2 + radius * Math.cos(angle);
      const y = SIZE / 2 + radius * Math.sin(angle);
      return [node.name, { x, y, angle, size }];
    }),
  );
}

function showNode(parts, { node, place, few, marked }) {
  const { x, y, angle, size } = place;
  const matters = node.verdicts.map((verdict) => verdict.text).join(". ");
  setAttribute(parts.root, "aria-label", [node.name, stateWords(node), matters].filter(Boolean).join(", "));
  setAttribute(parts.root, "data-standing", standing(node));
  setAttribute(parts.root, "data-state", node.state);
  setAttribute(parts.root, "data-marked", marked ? "" : null);
  setAttribute(parts.root, "transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
  setAttribute(parts.halo, "r", size + 5);
  setAttribute(parts.disc, "r", size);
  setAttribute(parts.sign, "font-size", Math.round(1.4 * size));
  setText(parts.sign, sign(node));
  const { name } = node;
  setText(parts.label, name.length > LONGEST ? `${name.slice(0, LONGEST - 1)}…` : name);
  const left = Math.cos(angle) < -0.01;
  const gap = size + 8;
  setAttribute(parts.label, "font-size", few ? 21 : 13);
  if (few) {
    const upright = Math.abs(Math.cos(angle)) < 0.3;
    setAttribute(parts.label, "text-anchor", upright ? "middle" : left ? "end" : "start");
    setAttribute(parts.label, "x", (Math.cos(angle) * gap * (upright ? 0.4 : 1)).toFixed(1));
    setAttribute(parts.label, "y", (Math.sin(angle) * gap * (upright ? 1.35 : 1)).toFixed(1));
    setAttribute(parts.label, "transform", null);
  } else {
    const degrees = (180 * angle) / Math.PI;
    setAttribute(parts.label, "text-anchor", left ? "end" : "start");
    setAttribute(parts.label, "x", left ? -gap : gap);
    setAttribute(parts.label, "y", null);
    setAttribute(parts.label, "transform", `rotate(${(left ? degrees + 180 : degrees).toFixed(1)})`);
  }
}

/** Return what the graph shows, in words, and why it has no lines if there can be none. */
function caption({ averages, missing }) {
  const keys = "Arrow keys select a node, and Enter opens its page.";
  const line = "A line is a merge of the last 15 s, from a peer to the node at its arrow. Newer merges are stronger lines.";
  if (missing.clock) return `There are no lines: ${missing.clock}. ${keys}`;
  if (!averages) return `${line} ${keys}`;
  return `The shape joins the nodes that are in sync. These nodes average their gradients in each step. ${line} Only nodes that are out of sync merge. ${keys}`;
}

/** Draw a shape that joins the nodes that average gradients together. */
function shape(context, places) {
  if (places.length < 2) return;
  const inOrder = [...places].sort((one, other) => one.angle - other.angle);
  context.beginPath();
  inOrder.forEach(({ x, y }) => context.lineTo(x, y));
  context.closePath();
  context.fillStyle = context.strokeStyle = colour("good");
  context.lineWidth = 3;
  context.globalAlpha = 0.1;
  context.fill();
  context.globalAlpha = 0.7;
  context.stroke();
  context.globalAlpha = 1;
}

function stroke(context, known, edges, age, alpha, arrows) {
  if (!edges.length) return;
  context.strokeStyle = context.fillStyle = colour(age.name);
  context.globalAlpha = alpha;
  context.lineWidth = age.width;
  const heads = new Path2D();
  context.beginPath();
  for (const edge of edges) line(context, heads, known.get(edge.from), known.get(edge.to), arrows);
  context.stroke();
  context.fill(heads);
  context.globalAlpha = 1;
}

function line(context, heads, from, to, arrows) {
  const center = SIZE / 2;
  const controlX = center + ((from.x + to.x) / 2 - center) * BEND;
  const controlY = center + ((from.y + to.y) / 2 - center) * BEND;
  const angle = Math.atan2(to.y - controlY, to.x - controlX);
  const endX = to.x - (to.size + 4) * Math.cos(angle);
  const endY = to.y - (to.size + 4) * Math.sin(angle);
  context.moveTo(from.x, from.y);
  context.quadraticCurveTo(controlX, controlY, endX, endY);
  if (!arrows) return;
  heads.moveTo(endX, endY);
  for (const side of [-0.4, 0.4]) {
    heads.lineTo(endX - 10 * Math.cos(angle + side), endY - 10 * Math.sin(angle + side));
  }
  heads.closePath();
}
