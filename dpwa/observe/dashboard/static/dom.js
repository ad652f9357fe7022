// Makes and changes elements. All data are untrusted, so they are inserted as text, never as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element: `make("a", {class: "name", href: "#"}, "text", child)`. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Make an SVG element in the same way. */
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

/** Set a text only if it differs, because each change costs a layout and may be read aloud. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (value === null || value === undefined) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** The children of an element, one for each item. Existing children are used again. */
export class Keyed {
  /**
   * @param parent element of the children.
   * @param create returns the parts for a key: an object whose `root` is the child.
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
    // An element loses the focus if it is moved.
    if (focused !== document.activeElement && this.parent.contains(focused)) {
      focused.focus({ preventScroll: true });
    }
  }

  get(key) {
    if (!this.parts.has(key)) this.parts.set(key, this.create(key));
    return this.parts.get(key);
  }
}
