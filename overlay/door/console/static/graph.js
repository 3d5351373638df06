// The live graph: nodes and links as the node knows them, laid out by forces, with the tree of a root on demand.
/* global d3 */

import { replace, svg } from "./dom.js";
import { linksOf, stateOf } from "./watch.js";

const WIDTH = 760;
const HEIGHT = 430;
const RADIUS = 15;
const LABELLED_MAX = 120;
const STATE_TEXT = { here: "this node", heard: "on the channel", silent: "silent", left: "left" };

/** `choose(node id or null)` is called when the user picks a root. */
export function liveGraph(choose) {
  const links = svg("g", { class: "links" });
  const dots = svg("g", { class: "nodes" });
  const element = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "graph", role: "group", "aria-label": "Graph of the channel" }, links, dots);
  const places = new Map();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const forces = d3.forceSimulation()
    .force("charge", d3.forceManyBody().strength(-620).distanceMax(420))
    .force("x", d3.forceX(WIDTH / 2).strength(0.08))
    .force("y", d3.forceY(HEIGHT / 2).strength(0.11))
    .force("apart", d3.forceCollide(RADIUS * 2.4))
    .stop();
  const pull = d3.forceLink().id((place) => place.id).distance(128).strength(0.25);
  forces.force("links", pull).on("tick", () => place(element));

  let shape = "";
  return {
    element,
    show(topology, root) {
      const nodes = topology.nodes.filter((node) => !node.leaving);
      const all = linksOf(topology);
      for (const id of places.keys()) if (!nodes.some((node) => node.node_id === id)) places.delete(id);
      nodes.forEach((node, at) => {
        const turn = (2 * Math.PI * at) / nodes.length;
        const first = { id: node.node_id, x: WIDTH / 2 + 150 * Math.cos(turn), y: HEIGHT / 2 + 150 * Math.sin(turn) };
        if (!places.has(node.node_id)) places.set(node.node_id, first);
      });
      draw(topology, nodes, all, root);
      const drawn = JSON.stringify([nodes.map((node) => node.node_id), all.map((link) => [link.source, link.target])]);
      if (drawn !== shape) {
        shape = drawn;
        forces.nodes([...places.values()]);
        pull.links(all.map(({ source, target }) => ({ source, target })));
        forces.alpha(0.9);
        if (still) forces.tick(300);
        else forces.restart();
      }
      place(element);
    },
  };

  function draw(topology, nodes, all, root) {
    const tree = topology.tree ?? {};
    const inTree = (link) => tree[link.source] === link.target || tree[link.target] === link.source;
    replace(links, all.map((link) => svg("line", {
      class: [link.ends < 2 ? "half" : "", root && inTree(link) ? "tree" : "", root && !inTree(link) ? "rest" : ""].join(" ").trim(),
      "data-from": link.source, "data-to": link.target,
    })));
    const focused = document.activeElement?.dataset?.id;
    replace(dots, nodes.map((node) => dot(topology, node, root, nodes.length <= LABELLED_MAX)));
    if (focused) dots.querySelector(`[data-id="${focused}"]`)?.focus();
  }

  function dot(topology, node, root, isLabelled) {
    const state = stateOf(node, topology);
    const isRoot = node.node_id === root;
    const pick = () => choose(isRoot ? null : node.node_id);
    const known = node.site ? `${node.name}, ${node.site}` : node.name;
    return svg("g", {
      class: `node ${state}${isRoot ? " root" : ""}`, "data-id": node.node_id, "data-state": state, tabindex: "0", role: "button", "aria-pressed": String(isRoot),
      "aria-label": `${known}: ${STATE_TEXT[state]}, ${node.neighbours.length} links. Show its tree`,
      onclick: pick,
      onkeydown: (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); }
        if (event.key === "Escape") choose(null);
      },
    },
    svg("circle", { r: RADIUS + 6, class: "halo" }), svg("circle", { r: RADIUS, class: "dot" }),
    state === "silent" ? svg("path", { d: "M-5-5 5 5M5-5-5 5", class: "cross" }) : null,
    isLabelled ? svg("text", { y: RADIUS + 22 }, node.name) : null);
  }

  function place(inside) {
    // The picture is zoomed to what is there: few nodes fill it, many fit in.
    const xs = [...places.values()].map((each) => each.x);
    const ys = [...places.values()].map((each) => each.y);
    const low = { x: Math.min(...xs), y: Math.min(...ys) };
    const zoom = Math.min(1.9, (WIDTH - 110) / (Math.max(...xs) - low.x || 1), (HEIGHT - 110) / (Math.max(...ys) - low.y || 1));
    const middle = { x: (Math.max(...xs) + low.x) / 2, y: (Math.max(...ys) + low.y) / 2 };
    const at = (id) => {
      const { x, y } = places.get(id);
      return { x: WIDTH / 2 + (x - middle.x) * zoom, y: HEIGHT / 2 - 8 + (y - middle.y) * zoom };
    };
    for (const line of inside.querySelectorAll("line")) {
      const [one, other] = [at(line.dataset.from), at(line.dataset.to)];
      line.setAttribute("x1", one.x);
      line.setAttribute("y1", one.y);
      line.setAttribute("x2", other.x);
      line.setAttribute("y2", other.y);
    }
    for (const node of inside.querySelectorAll(".node")) {
      const { x, y } = at(node.dataset.id);
      node.setAttribute("transform", `translate(${x} ${y})`);
    }
  }
}
