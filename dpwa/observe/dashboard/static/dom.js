// Making and changing elements. Whatever is shown is foreign: it goes in as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: `make("a", {class: "name", href: "#"}, "text", child)`. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Likewise, of SVG. */
export function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  element.append(...children);
  return element;
}

export function find(selector, root = document) {
  return root.querySelector(selector);
}

/** Change a text, but only if it is another one: screen readers and layout notice each change. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null || value === undefined) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Children of an element, one for each item; those that are there are used again. */
export class Keyed {
  /**
   * @param parent of the children.
   * @param create makes parts for a key: an object whose `root` is the child.
   * @param update shows an item in its parts.
   */
  constructor(parent, create, update) {
    Object.assign(this, { parent, create, update });
    this.parts = new Map();
  }

  show(items, keyOf) {
    const focused = document.activeElement;
    const keys = new Set(items.map(keyOf));
    for (const [key, parts] of this.parts) {
      if (!keys.has(key)) {
        parts.root.remove();
        this.parts.delete(key);
      }
    }
    let place = this.parent.firstElementChild;
    for (const item of items) {
      const parts = this.get(keyOf(item));
      this.update(parts, item);
      if (parts.root === place) place = place.nextElementSibling;
      else this.parent.insertBefore(parts.root, place);
    }
    // An element that was moved has lost the focus.
    if (focused !== document.activeElement && this.parent.contains(focused)) {
      focused.focus({ preventScroll: true });
    }
  }

  get(key) {
    if (!this.parts.has(key)) this.parts.set(key, this.create(key));
    return this.parts.get(key);
  }
}
