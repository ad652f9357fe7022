// Returns numbers and states in words.

export const NONE = "–";

const collator = new Intl.Collator("en", { numeric: true });
const dayTime = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** Compare two names in natural order: w2 is before w10. */
export const byName = (one, other) => collator.compare(one, other);

export function number(value, digits = 3) {
  if (value === null || value === undefined) return NONE;
  if (value === "inf") return "∞";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e9 || size < 1e-4) return value.toExponential(digits - 1);
  return size >= 1000 ? grouped.format(value) : String(Number(value.toPrecision(digits)));
}

export function bytes(value) {
  if (value === null || value === undefined) return NONE;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  for (; value >= 1000 && index < units.length - 1; index++) value /= 1000;
  return `${number(value)} ${units[index]}`;
}

export const perSecond = (value) => (typeof value === "number" ? `${bytes(value)}/s` : NONE);

export const percent = (share) => `${Math.round(100 * share)} %`;

export function duration(seconds) {
  if (typeof seconds !== "number") return NONE;
  if (seconds < 10) return `${Number(Math.max(seconds, 0).toFixed(1))} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

export const at = (seconds) => dayTime.format(new Date(1000 * seconds));

export const count = (n, one, many = `${one}s`) => `${n} ${n === 1 ? one : many}`;

/** Return the word for a node's state, as in `dpwa top`. A node that does not answer is "gone" or "no answer". */
export const stateWord = (node) => (node.state === "silent" ? (node.verdicts[0]?.kind ?? "gone") : node.state);

export const ENDS = { finished: "has finished", left: "has left", silent: "does not answer any more" };

/** Return names in words. If there are many, only the first three are named. */
export function listed(names) {
  const first = names.slice(0, 3).join(", ");
  return names.length > 3 ? `${first} and ${names.length - 3} more` : first;
}

// The states of the nodes that answer.
export const ANSWERS = new Set(["live", "finishing", "finished"]);

/** Return how a node averages gradients with others, in words, or "" if it averages none. */
export function syncWords(node) {
  if (node.out_of_sync_s !== null) return `out of sync for ${duration(node.out_of_sync_s)}`;
  if (node.state !== "live" || !node.in_sync.length) return "";
  return node.in_sync.length > 1 ? "in sync" : "alone";
}

/** Return the state of a node, in words. */
export function stateWords(node) {
  if (syncWords(node)) return syncWords(node);
  if (node.state === "silent") return `${stateWord(node)} for ${duration(node.silent_s)}`;
  if (node.state === "finishing" && node.waits_for.length) return `finishing, waits for ${listed(node.waits_for)}`;
  return node.through ? `${node.state}, reported by ${node.through}` : node.state;
}

/** Return "bad", "odd" or "good", by the problems of a node. */
export function standing(node) {
  if (node.verdicts.some((verdict) => verdict.severity === "bad")) return "bad";
  const isWell = ANSWERS.has(node.state) || node.state === "left";
  return node.verdicts.length || !isWell ? "odd" : "good";
}

// Each state has a sign, because some readers cannot distinguish the colours.
export function sign(node) {
  if (node.state === "silent") return "×";
  if (node.state === "left") return "–";
  if (!ANSWERS.has(node.state)) return "?";
  return node.verdicts.length ? "!" : "";
}

/** Return the shares of a node's time, in words. */
export function sharesWords(shares) {
  if (!shares) return "not known yet";
  const { train, publish, wait, merge } = shares;
  return (
    `${percent(train)} training, ${percent(publish)} publishing, ` +
    `${percent(wait)} waiting, ${percent(merge)} merging`
  );
}

export const nodeLink = (name) => `#node/${encodeURIComponent(name)}`;
