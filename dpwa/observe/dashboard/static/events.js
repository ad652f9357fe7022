// The lists of events, newest first.

import { Keyed, find, make, setAttribute, setText } from "./dom.js";
import { at, nodeLink } from "./words.js";

const MAX_SHOWN = 200;
const inWords = (kind) => kind.replaceAll("_", " ");

/** A list of events. */
export class Events {
  /** @param list the <ol>. The element after its box has the text for an empty list. */
  constructor(list) {
    this.list = list;
    this.items = new Keyed(list, makeEvent, showEvent);
  }

  show(events) {
    this.items.show(events.slice(0, MAX_SHOWN), (event) => event.key);
    const box = this.list.parentElement;
    box.nextElementSibling.hidden = events.length > 0;
    box.hidden = !events.length;
  }
}

/** The events of the run, of all kinds or of one kind. */
export class FilteredEvents {
  constructor(changed) {
    this.events = new Events(find("#events ol"));
    this.select = find("#kinds");
    this.select.addEventListener("change", changed);
    this.kinds = [];
  }

  show(events) {
    const kinds = [...new Set([...this.kinds, ...events.map((event) => event.kind)])].sort();
    if (kinds.length !== this.kinds.length) {
      this.kinds = kinds;
      const chosen = this.select.value;
      const options = kinds.map((kind) => make("option", { value: kind }, inWords(kind)));
      this.select.replaceChildren(make("option", { value: "" }, "all but checkpoints"), ...options);
      this.select.value = chosen;
    }
    const kind = this.select.value;
    const isShown = (event) => (kind ? event.kind === kind : event.kind !== "checkpoint");
    this.events.show(events.filter(isShown));
  }
}

function makeEvent() {
  const parts = {
    time: make("time", {}),
    kind: make("span", { class: "badge" }),
    about: make("a", { class: "name" }),
    text: make("span", {}),
  };
  parts.root = make("li", {}, parts.time, parts.kind, make("span", {}, parts.about, " ", parts.text));
  return parts;
}

function showEvent({ root, time, kind, about, text }, event) {
  if (root.dataset.key === String(event.key)) return; // an event does not change
  root.dataset.key = event.key;
  setText(time, at(event.time));
  setAttribute(time, "datetime", new Date(1000 * event.time).toISOString());
  setText(kind, inWords(event.kind));
  setText(about, event.text.startsWith(event.about) ? "" : event.about);
  setAttribute(about, "href", nodeLink(event.about));
  const by = event.node && event.node !== event.about ? ` (noticed by ${event.node})` : "";
  setText(text, `${event.text}${by}`);
}
