// The page: data from the server go into the store, and the frames draw the contents of the store.

import { followTheme } from "./colours.js";
import { Curves } from "./curves.js";
import { find } from "./dom.js";
import { FilteredEvents } from "./events.js";
import { Frames } from "./frames.js";
import { Attention, showLost, showMoved, showSummary } from "./header.js";
import { NodeView } from "./node.js";
import { nodesTable, showNodes } from "./nodes.js";
import { Store } from "./store.js";
import { Stream } from "./stream.js";
import { Topology } from "./topology.js";

const VIEW = /^#node\/(.+)$/;

const store = new Store();
const pointed = () => frames.ask(drawTopology, drawLoss);
const topology = new Topology(store, pointed);
const curves = new Curves(store, () => frames.ask());
const attention = new Attention();
const table = nodesTable();
const events = new FilteredEvents(() => frames.ask());
const view = new NodeView(store, () => frames.ask());

const inOverview = (draw) => () => view.name || draw();
const inView = (draw) => () => view.name && draw();

const drawTopology = inOverview(() => topology.show());
const drawLoss = inOverview(() => curves.draw("loss"));
const frames = new Frames([
  () => {
    showSummary(store);
    showMoved(store);
    attention.show(store.nodes);
  },
  inView(() => view.show()),
  inView(() => view.drawLoss()),
  inView(() => view.drawBudget()),
  drawTopology,
  inOverview(() => curves.showLegend()),
  inOverview(() => showNodes(table, store)),
  inOverview(() => events.show(store.events)),
  drawLoss,
  inOverview(() => curves.draw("distance")),
  inOverview(() => curves.draw("speed")),
]);
let cameFrom = null; // the element that had the focus before the page of a node was opened

/** Show all nodes, or the node in the address. */
function route() {
  const before = view.name;
  const name = nameIn(location.hash);
  if (name && !before) cameFrom = document.activeElement;
  find("#overview").hidden = Boolean(name);
  find("#node").hidden = !name;
  if (name) view.open(name);
  else view.close();
  document.title = name ? `${name} · dpwa` : "dpwa";
  if (name) {
    scrollTo(0, 0);
    find("#node-name").focus();
  } else if (before) {
    const isThere = cameFrom?.isConnected && cameFrom !== document.body;
    (isThere ? cameFrom : find("#main")).focus();
  }
  frames.ask();
}

function nameIn(hash) {
  try {
    return decodeURIComponent(VIEW.exec(hash)?.[1] ?? "");
  } catch {
    return ""; // the address is damaged
  }
}

addEventListener("hashchange", route);
find(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // else the link would change the address, which selects the shown node
  find("#main").focus();
});
followTheme(find("#theme"), () => frames.ask());
route();

const stream = new Stream(
  "api/stream",
  (kind, news) => {
    if (kind === "snapshot") store.restart(news);
    else store.update(news);
    frames.ask();
  },
  () => showLost(stream),
);
