// A chart of lines or areas over time, with a summary in words.

import { colour } from "./colours.js";
import { setAttribute, setText } from "./dom.js";
import { at } from "./words.js";

const { uPlot } = window; // vendor/uPlot.iife.min.js
const FONT = "12px system-ui, sans-serif";
const NEAR = 24; // maximum number of pixels from the pointer to the line that the caption describes

export class Plot {
  /**
   * @param box element that the chart fills. A <figcaption> next to the box has the summary.
   * @param format function that returns the text of a value.
   * @param options `range` is uPlot's `scales.y.range`. If it is null, uPlot chooses the range.
   */
  constructor(box, format, { range = null } = {}) {
    Object.assign(this, { box, format, range });
    this.caption = box.parentElement.querySelector("figcaption");
    this.lines = [];
    this.log = false;
    this.summary = "";
    setAttribute(box, "role", "img");
    setAttribute(box, "aria-label", "No value is known yet.");
    new ResizeObserver(() => this.resize()).observe(box);
  }

  /**
   * Draw the lines.
   * @param times in seconds since the epoch.
   * @param lines {name, values, stroke, width, dash, fill}. Each line is drawn above the line before.
   * @param summary of the lines, in words.
   */
  show(times, lines, summary) {
    const [width, height] = this.size;
    if (!width || !height) return;
    this.summary = summary;
    setAttribute(this.box, "aria-label", summary);
    this.lines = lines;
    if (this.plot?.series.length !== lines.length + 1 || this.plot.log !== this.log) {
      this.build(width, height);
    }
    lines.forEach((line, index) => {
      Object.assign(this.plot.series[index + 1], { width: line.width ?? 0, dash: line.dash });
    });
    this.plot.setData([times, ...lines.map((line) => line.values)]);
    this.read();
  }

  get size() {
    return [this.box.clientWidth, this.box.clientHeight];
  }

  resize() {
    const [width, height] = this.size;
    if (this.plot && width && height) this.plot.setSize({ width, height });
  }

  build(width, height) {
    this.plot?.destroy();
    const axis = {
      font: FONT,
      stroke: () => colour("muted"),
      grid: { stroke: () => colour("grid"), width: 1 },
      ticks: { show: false },
    };
    const series = this.lines.map((_, index) => ({
      stroke: () => this.lines[index].stroke,
      fill: () => this.lines[index].fill,
      points: { show: false },
      spanGaps: true,
    }));
    const format = (_, values) => values.map((value) => (value === null ? "" : this.format(value)));
    this.plot = new uPlot(
      {
        width,
        height,
        padding: [10, 32, 0, 0], // right: half of a label of the time axis
        series: [{}, ...series],
        scales: {
          x: { time: true },
          y: { distr: this.log ? 3 : 1, ...(this.range && { range: this.range }) },
        },
        axes: [
          { ...axis, size: 28, space: 66, values: (_, times) => times.map(at) },
          { ...axis, size: 56, values: format },
        ],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { show: false }, focus: { prox: NEAR } },
        focus: { alpha: 1 },
        hooks: { setSeries: [(_, index) => this.point(index)], setCursor: [() => this.read()] },
      },
      [[], ...this.lines.map(() => [])],
      this.box,
    );
    this.plot.log = this.log;
  }

  point(index) {
    this.near = index;
    this.read();
  }

  /** Describe the line at the pointer in the caption, or show the summary of all lines. */
  read() {
    const index = this.plot?.cursor.idx;
    const line = this.lines[this.near - 1];
    const value = line?.values[index];
    if (typeof value !== "number" || this.plot.cursor.left < 0) setText(this.caption, this.summary);
    else {
      const told = line.told ? line.told(index) : this.format(value);
      setText(this.caption, `${line.name}: ${told} at ${at(this.plot.data[0][index])}`);
    }
  }
}
