// A table that can be sorted by each of its columns. Existing rows and cells are used again.

import { Keyed, make, setAttribute } from "./dom.js";
import { byName } from "./words.js";

export class Table {
  /**
   * @param element the <table>, with an empty <thead> and <tbody>.
   * @param columns {title, value, create, update}: `value` returns the value to sort by, `create` makes
   *   the parts of a cell, and `update` shows an item in them.
   * @param caption of the table, for screen readers.
   */
  constructor(element, columns, caption) {
    this.columns = columns;
    this.items = [];
    this.sorted = { column: columns[0], down: false };
    this.box = element.parentElement; // scrolls if it is narrower than the table
    this.sideways = make("p", { class: "note", hidden: "" }, "Scroll sideways for more columns →");
    this.box.before(this.sideways);
    element.prepend(make("caption", { class: "unseen" }, caption));
    this.heads = columns.map((column) => this.makeHead(column));
    element.tHead.append(make("tr", {}, ...this.heads));
    this.body = element.tBodies[0];
    this.rows = new Keyed(this.body, () => this.makeRow(), (row, item) => this.showRow(row, item));
    this.keyOf = (item) => item.name;
    this.hidden = {}; // keys of the columns that are not shown, each with the reason
    this.tellOrder();
  }

  makeHead(column) {
    const button = make("button", { type: "button" }, column.title);
    button.addEventListener("click", () => {
      const same = this.sorted.column === column;
      this.sorted = { column, down: same ? !this.sorted.down : Boolean(column.down) };
      this.tellOrder();
      this.order = null;
      this.show(this.items);
    });
    return make("th", { scope: "col", class: column.class ?? "" }, button);
  }

  tellOrder() {
    this.columns.forEach((column, index) => {
      const order = this.sorted.down ? "descending" : "ascending";
      setAttribute(this.heads[index], "aria-sort", column === this.sorted.column ? order : null);
    });
  }

  makeRow() {
    const cells = this.columns.map((column, index) => {
      const tag = index ? "td" : "th";
      const cell = make(tag, { class: column.class ?? "", ...(index ? {} : { scope: "row" }) });
      return { cell, parts: column.create?.(cell) };
    });
    return { root: make("tr", {}, ...cells.map(({ cell }) => cell)), cells };
  }

  isHidden(column) {
    return column.key in this.hidden;
  }

  showRow(row, item) {
    setAttribute(row.root, "data-standing", item.standing ?? null);
    this.columns.forEach((column, index) => {
      const { cell, parts } = row.cells[index];
      cell.hidden = this.isHidden(column);
      column.update(cell, item, parts);
    });
  }

  /** Show these items, each with a different `name`, without the columns with the keys of `hidden`. */
  show(items, hidden = this.hidden) {
    Object.assign(this, { items, hidden });
    this.columns.forEach((column, index) => (this.heads[index].hidden = this.isHidden(column)));
    this.rows.show(this.inOrder(items), this.keyOf);
    this.sideways.hidden = this.box.scrollWidth <= this.box.clientWidth;
  }

  /** Sort the items. While the pointer is on the table, no row moves, so that no wrong row is clicked. */
  inOrder(items) {
    const { column, down } = this.sorted;
    const held = this.order && this.body.matches(":hover");
    const places = held ? this.order : new Map();
    const sorted = [...items].sort((one, other) => {
      const place = (places.get(one.name) ?? 0) - (places.get(other.name) ?? 0);
      return place || compare(column.value(one), column.value(other), down) || byName(one.name, other.name);
    });
    this.order = new Map(sorted.map((item, index) => [item.name, index]));
    return sorted;
  }
}

/** Return a text that names the hidden columns, with the reasons. */
export function hiddenWords({ columns, hidden }) {
  const titles = new Map();
  for (const { key, title } of columns) {
    if (hidden[key]) titles.set(hidden[key], [...(titles.get(hidden[key]) ?? []), title]);
  }
  const parts = [...titles].map(([why, which]) => `${which.join(", ")} (${why})`);
  return parts.length ? `Not shown: ${parts.join(", ")}.` : "";
}

/** Compare two values. Unknown values are last in either order. */
function compare(one, other, down) {
  const [first, second] = [one, other].map((value) => (value === "inf" ? Infinity : value));
  if (first === second) return 0;
  if (first === null || first === undefined) return 1;
  if (second === null || second === undefined) return -1;
  const order = typeof first === "string" ? byName(first, second) : first - second;
  return down ? -order : order;
}
