// The values of the curves. All nodes share one list of times, so that their curves share one axis.

const MAX_TIMES = 900; // with more times, the older times are thinned
const KEPT = 1 / 3; // share of the times, the newest, that are not thinned
export const FIELDS = ["loss", "distance", "speed"]; // in the order of the values of a point, after its time

export class Timeline {
  constructor() {
    this.clear();
  }

  clear() {
    this.times = []; // whole seconds since the epoch, ascending
    this.nodes = new Map(); // name → {loss: [...], distance: [...], speed: [...]}, with null if unknown
  }

  /** Add points: for each node, a list of [time, loss, consensus distance, steps per second]. */
  add(points) {
    this.makeRoom(points);
    for (const [name, rows] of Object.entries(points)) {
      const node = this.of(name);
      for (const row of rows) {
        const index = this.indexOf(Math.floor(row[0]));
        FIELDS.forEach((field, i) => {
          const value = row[1 + i];
          if (typeof value === "number") node[field][index] = value;
        });
      }
    }
    while (this.times.length > MAX_TIMES) this.thin();
  }

  of(name) {
    if (!this.nodes.has(name)) {
      const columns = FIELDS.map((field) => [field, new Array(this.times.length).fill(null)]);
      this.nodes.set(name, Object.fromEntries(columns));
    }
    return this.nodes.get(name);
  }

  /** Remove all nodes except these. */
  keep(names) {
    for (const name of this.nodes.keys()) if (!names.has(name)) this.nodes.delete(name);
  }

  indexOf(time) {
    let low = 0;
    let high = this.times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.times[middle] < time) low = middle + 1;
      else high = middle;
    }
    // After thinning, the time of a late point may be missing. Then the point uses the next time.
    return Math.min(low, this.times.length - 1);
  }

  makeRoom(points) {
    const known = new Set(this.times);
    const fresh = new Set();
    for (const rows of Object.values(points)) {
      for (const row of rows) {
        const time = Math.floor(row[0]);
        if (!known.has(time)) fresh.add(time);
      }
    }
    if (!fresh.size) return;
    const times = [...fresh].sort((one, other) => one - other);
    if (!this.times.length || times[0] > this.times.at(-1)) {
      this.times.push(...times);
      const more = times.map(() => null);
      this.eachColumn((column) => column.push(...more));
    } else {
      this.insert(times);
    }
  }

  insert(fresh) {
    const all = [...this.times, ...fresh].sort((one, other) => one - other);
    const before = new Map(this.times.map((time, index) => [time, index]));
    const from = all.map((time) => before.get(time) ?? -1);
    this.times = all;
    this.mapColumns((column) => from.map((index) => (index < 0 ? null : column[index])));
  }

  /** Merge each two of the older times into one. The later of a node's two values stays. */
  thin() {
    const length = this.times.length;
    const older = 2 * Math.floor(((1 - KEPT) * length) / 2);
    const halve = (column) => {
      const thinned = [];
      for (let i = 0; i < older; i += 2) thinned.push(column[i + 1] ?? column[i]);
      for (let i = older; i < length; i++) thinned.push(column[i]);
      return thinned;
    };
    this.times = halve(this.times);
    this.mapColumns(halve);
  }

  eachColumn(use) {
    for (const node of this.nodes.values()) for (const field of FIELDS) use(node[field]);
  }

  mapColumns(change) {
    for (const node of this.nodes.values()) {
      for (const field of FIELDS) node[field] = change(node[field]);
    }
  }
}
