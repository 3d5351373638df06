// The first view: the graph as it changes, how much flows, what is missing, and what has happened.

import { chart } from "../charts.js";
import { amount, bytes, card, clock, h, replace, seconds, table, tile } from "../dom.js";
import { liveGraph } from "../graph.js";
import { plural, stateOf, watch } from "../watch.js";

const LEGEND = [["here", "this node"], ["heard", "on the channel"], ["silent", "silent"]];
const STATE_TEXT = { here: "here", heard: "heard", silent: "silent", left: "left" };

export function overview(main) {
  const tiles = h("div", { class: "tiles" });
  const graph = liveGraph(choose);
  const roots = h("select", { id: "root", onchange: () => choose(roots.value || null) });
  const tree = h("p", { class: "muted", id: "tree", role: "status" });
  const log = h("ol", { class: "events", "aria-live": "polite", "aria-label": "What has happened", tabindex: "0" });
  const nodes = h("div");
  const { history } = watch;
  const charts = [
    chart("Rows per second", [
      { name: "published here", colour: "accent", get: () => history.published },
      { name: "delivered, pushed", colour: "good", get: () => history.pushed },
      { name: "delivered, pulled", colour: "violet", get: () => history.pulled },
    ], amount, 10),
    chart("Delivery latency", [
      { name: "p99", colour: "warn", get: () => history.p99 },
      { name: "p50", colour: "good", get: () => history.p50 },
    ], seconds),
    chart("Rows that others have and this node lacks", [
      { name: "missing rows", colour: "bad", get: () => history.missing },
    ], amount, 10),
  ];
  const plots = h("div", { class: "plots" }, charts.map((each) => each.element));
  const refused = h("p", { class: "empty" });
  replace(main, tiles,
    h("div", { class: "split" },
      card("Graph", { class: "wide" },
        h("div", { class: "row between" },
          h("p", { class: "legend" }, LEGEND.map(([state, text]) => h("span", { class: `key is-${state}` }, text))),
          h("label", { class: "inline", for: "root" }, "Tree of ", roots)),
        graph.element, tree),
      card("Events", { class: "narrow" }, log)),
    card("Flow", {}, refused, plots), card("Nodes", {}, nodes));

  function choose(root) {
    watch.root = root;
    watch.look();
  }

  function showRoots({ nodes: all }) {
    const listed = all.filter((node) => !node.leaving).sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
    const options = [["", "no node"], ...listed.map((node) => [node.node_id, node.name])];
    if (JSON.stringify(options) !== roots.dataset.shown) {
      roots.dataset.shown = JSON.stringify(options);
      replace(roots, options.map(([value, text]) => h("option", { value }, text)));
    }
    roots.value = watch.root ?? "";
  }

  function look() {
    const { topology } = watch;
    if (!topology) return;
    const present = topology.nodes.filter((node) => !node.leaving);
    const silent = present.filter((node) => node.silent).length;
    replace(tiles, tilesOf(present.length, silent));
    graph.show(topology, watch.root);
    showRoots(topology);
    const depths = watch.root && topology.tree ? depthsOf(topology.tree, watch.root) : null;
    tree.textContent = depths
      ? `From ${watch.name(watch.root)}, ${plural(depths.reached, "node")} within ${plural(depths.deepest, "hop")}: one of the shortest paths to each.`
      : "Choose a node to see the tree of shortest paths from it.";
    replace(nodes, table("Nodes that this node knows", [{ title: "Node" }, { title: "State" }, { title: "Site" }, { title: "Address", code: true }, { title: "Links", number: true }, { title: "Incarnation", number: true }],
      topology.nodes.toSorted((one, other) => one.leaving - other.leaving || one.name.localeCompare(other.name, "en", { numeric: true }))
        .map((node) => [node.name, h("span", { class: `pill ${stateOf(node, topology)}` }, STATE_TEXT[stateOf(node, topology)]), node.site || "–", node.address, node.silent ? "–" : String(node.neighbours.length), String(node.incarnation)]),
      "No node is known."));
    refused.hidden = Boolean(watch.metrics) || !watch.metricsRefused;
    refused.textContent = `This token may not see metrics: ${watch.metricsRefused}`;
    plots.hidden = !watch.metrics;
    for (const each of charts) each.show(history.at);
  }

  function events() {
    replace(log, watch.events.map((event) => h("li", { class: event.kind }, h("time", {}, clock(event.at)), h("span", {}, event.text))));
  }

  look();
  events();
  return { look, events, end: () => charts.forEach((each) => each.forget()) };
}

function tilesOf(present, silent) {
  const last = (name) => watch.history[name].at(-1);
  const value = (name, labels) => watch.value(name, labels);
  const open = value("m4cast_gaps_open");
  const missing = value("m4cast_missing_rows");
  const used = value("m4cast_store_live_bytes");
  const flowing = (last("pushed") ?? null) === null ? undefined : last("pushed") + last("pulled");
  const list = [
    tile("Nodes", String(present - silent), silent ? `${silent} silent` : "all heard", silent ? "bad" : "good"),
    tile("Published here", watch.metrics ? `${amount(last("published"))}/s` : "–", `${amount(value("m4cast_published_rows_total"))} rows since start`),
    tile("Delivered from others", watch.metrics ? `${amount(flowing)}/s` : "–", `p99 latency ${seconds(last("p99"))}`),
    tile("Lag", watch.metrics ? amount(missing) : "–", missing ? "rows are on their way" : "nothing is missing", missing ? "warn" : "good"),
    tile("Gaps open", watch.metrics ? amount(open) : "–", `${amount(value("m4cast_gaps_opened_total"))} opened, ${amount(value("m4cast_gaps_repaired_total"))} repaired`, open ? "bad" : "good"),
    tile("Store", bytes(used), `${bytes(value("m4cast_store_available_bytes"))} free`),
  ];
  return list;
}

function depthsOf(tree, root) {
  const depth = (id) => { let hops = 0; for (let at = id; at !== root && at !== undefined; at = tree[at]) hops += 1; return hops; };
  const depths = Object.keys(tree).map(depth);
  return { reached: depths.length, deepest: Math.max(0, ...depths) };
}
