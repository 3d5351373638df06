// What the console watches: the graph, the units and the metrics of the node, asked for every two seconds.
//
// `watch` is an EventTarget: "look" after each look, "event" for each thing that happened between two looks. Others read
// `watch.topology`, `watch.units`, `watch.metrics` (null if the token may not) and `watch.history`.

import { Refused, get } from "./door.js";

const EVERY_MS = 2000;
const HISTORY_MAX = 450; // 15 minutes
const EVENTS_MAX = 200;
const WINDOW_S = 10; // rates and latencies are those of this long: a single look catches whole batches, or none
const WINDOW_LEAST_S = 5; // before it is this long, there are none: they would jump with each batch
const APART_S = 1; // a look that the user asked for comes sooner, and makes no point of its own

class Watch extends EventTarget {
  topology = null;
  units = null;
  metrics = null;
  metricsRefused = null;
  failure = null;
  root = null;
  events = [];
  history = { at: [], published: [], pushed: [], pulled: [], missing: [], p50: [], p99: [], gaps: [] };
  #samples = [];
  #timer = null;

  async look() {
    clearTimeout(this.#timer);
    try {
      const topology = await get(this.root ? `/topology?root=${this.root}` : "/topology");
      const units = await get("/units");
      const metrics = await get("/metrics.json").catch((error) => this.#refused(error));
      this.#compare(this.topology, topology);
      this.topology = topology;
      this.#compareGateways(this.units, units);
      this.units = units;
      this.#measure(metrics);
      if (this.failure) this.#note("good", "This node answers again");
      this.failure = null;
    } catch (error) {
      if (!this.failure && this.topology) this.#note("bad", "This node does not answer");
      this.failure = error;
      this.#samples = [];
    }
    this.dispatchEvent(new Event("look"));
    this.#timer = setTimeout(() => this.look(), EVERY_MS);
  }

  #refused(error) {
    if (!(error instanceof Refused) || error.status !== 403) throw error;
    this.metricsRefused = error.message;
    return null;
  }

  value(name, labels = {}) {
    const found = (this.metrics?.[name] ?? []).filter(([own]) => Object.entries(labels).every(([key, value]) => own[key] === value));
    return found.length ? found.reduce((sum, [, value]) => sum + value, 0) : null;
  }

  name(id) {
    const node = this.topology?.nodes.find((each) => each.node_id === id);
    return node?.name || id.slice(0, 8);
  }

  #note(kind, text) {
    this.events.unshift({ at: new Date(), kind, text });
    this.events.length = Math.min(this.events.length, EVENTS_MAX);
    this.dispatchEvent(new Event("event"));
  }

  #compare(before, now) {
    if (!before) {
      const present = now.nodes.filter((node) => !node.leaving);
      const silent = present.filter((node) => node.silent).length;
      return this.#note("plain", `Watching ${plural(present.length, "node")}${silent ? `, ${silent} of them silent` : ""}`);
    }
    const known = new Map(before.nodes.map((node) => [node.node_id, node]));
    for (const node of now.nodes) {
      const was = known.get(node.node_id);
      if (!was) this.#note("good", `${node.name} joined`);
      else if (node.leaving && !was.leaving) this.#note("plain", `${node.name} left`);
      else if (node.incarnation > was.incarnation) this.#note("good", `${node.name} started again, incarnation ${node.incarnation}`);
      else if (node.silent && !was.silent) this.#note("bad", `${node.name} is silent`);
      else if (!node.silent && was.silent) this.#note("good", `${node.name} is heard again`);
    }
    const links = (topology) => new Set(linksOf(topology).map((link) => `${link.source}|${link.target}`));
    const [old, current] = [links(before), links(now)];
    const names = new Map([...before.nodes, ...now.nodes].map((node) => [node.node_id, node.name]));
    const named = (link) => link.split("|").map((id) => names.get(id) ?? id.slice(0, 8)).join(" – ");
    for (const link of current) if (!old.has(link)) this.#note("good", `Link ${named(link)} is up`);
    for (const link of old) if (!current.has(link)) this.#note("warn", `Link ${named(link)} is gone`);
  }

  #compareGateways(before, now) {
    if (!before?.is_gatekeeper || !now.is_gatekeeper) return;
    const [old, current] = [before, now].map((units) => new Set(units.links.filter(isJoined).map((link) => `${link.channel} at ${link.address}`)));
    for (const link of current) if (!old.has(link)) this.#note("good", `Gateway to ${link} is up`);
    for (const link of old) if (!current.has(link)) this.#note("bad", `Gateway to ${link} is down`);
  }

  #measure(metrics) {
    this.metrics = metrics;
    if (!metrics) return;
    const now = { at: performance.now() / 1000, buckets: buckets(metrics), ...this.#counters() };
    if (this.#samples.at(-1)?.start !== now.start) this.#samples = [];
    const last = this.#samples.at(-1);
    if (last) this.#noteGaps(last, now);
    if (last && now.at - last.at < APART_S) {
      Object.assign(last, { opened: now.opened, repaired: now.repaired, lost: now.lost }); // noted just now
      return;
    }
    this.#samples.push(now);
    while (this.#samples.length > 2 && now.at - this.#samples[1].at >= WINDOW_S) this.#samples.shift();
    if (!last) return;
    const before = this.#samples[0];
    const isShort = now.at - before.at < WINDOW_LEAST_S;
    const rate = (name) => (isShort ? null : Math.max(0, (now[name] - before[name]) / (now.at - before.at)));
    const delays = isShort ? [] : now.buckets.map(([bound, count], at) => [bound, count - (before.buckets[at]?.[1] ?? 0)]);
    this.#remember({
      at: Date.now() / 1000, published: rate("published"), pushed: rate("pushed"), pulled: rate("pulled"),
      missing: this.value("m4cast_missing_rows"), gaps: this.value("m4cast_gaps_open"),
      p50: quantile(delays, 0.5), p99: quantile(delays, 0.99),
    });
  }

  #noteGaps(before, now) {
    if (now.opened > before.opened) this.#note("warn", `${plural(now.opened - before.opened, "gap")} opened: rows arrived before earlier ones`);
    if (now.repaired > before.repaired) this.#note("good", `${plural(now.repaired - before.repaired, "gap")} repaired`);
    if (now.lost > before.lost) this.#note("bad", `${plural(now.lost - before.lost, "row")} could not be had and were skipped`);
  }

  #counters() {
    const skipped = (reason) => this.value("m4cast_skipped_rows_total", { reason }) ?? 0;
    return {
      start: this.value("m4cast_node_incarnation"),
      published: this.value("m4cast_published_rows_total"),
      pushed: this.value("m4cast_delivered_rows_total", { how: "pushed" }) ?? 0,
      pulled: this.value("m4cast_delivered_rows_total", { how: "pulled" }) ?? 0,
      opened: this.value("m4cast_gaps_opened_total"),
      repaired: this.value("m4cast_gaps_repaired_total"),
      lost: skipped("lost") + skipped("expired"),
    };
  }

  #remember(point) {
    for (const [name, values] of Object.entries(this.history)) {
      values.push(point[name]);
      if (values.length > HISTORY_MAX) values.shift();
    }
  }
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

/** A link to another gatekeeper is of use once both know which units it joins, and while the other answers. */
export const isJoined = (link) => link.level !== null && !link.is_suspected;

/** The state of a node in one word, which is also its class. */
export function stateOf(node, topology) {
  if (node.leaving) return "left";
  if (node.silent) return "silent";
  if (node.node_id === topology.node_id) return "here";
  return "heard";
}

/** Each link once. `half`: only one end reports it, so it is new or going. */
export function linksOf(topology) {
  const present = new Map(topology.nodes.filter((node) => !node.leaving).map((node) => [node.node_id, node]));
  const found = new Map();
  for (const node of present.values()) {
    if (node.silent) continue; // what it said last is old
    for (const other of node.neighbours) {
      if (!present.has(other)) continue;
      const [source, target] = [node.node_id, other].sort();
      const link = found.get(`${source}|${target}`) ?? { source, target, ends: 0 };
      link.ends += 1;
      found.set(`${source}|${target}`, link);
    }
  }
  const heard = (id) => !present.get(id).silent;
  return [...found.values()].filter((link) => link.ends === 2 || (heard(link.source) && heard(link.target)));
}

function buckets(metrics) {
  const sums = new Map();
  for (const [labels, count] of metrics.m4cast_delivery_latency_seconds_bucket ?? [])
    sums.set(labels.le, (sums.get(labels.le) ?? 0) + count);
  return [...sums].map(([bound, count]) => [bound === "+Inf" ? Infinity : Number(bound), count]).sort(([one], [other]) => one - other);
}

/** The bound below which this share of the deliveries was; null if there was none. */
function quantile(cumulative, share) {
  const total = cumulative.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let [low, before] = [0, 0];
  for (const [bound, count] of cumulative) {
    if (count >= share * total) return bound === Infinity ? low : low + ((bound - low) * (share * total - before)) / (count - before || 1);
    [low, before] = [bound, count];
  }
  return low;
}

export const watch = new Watch();
