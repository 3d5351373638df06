// The federation as a gatekeeper knows it: its unit among others, the gateways between them, and what its links carry.

import { amount, bytes, card, h, replace, svg, table, tile } from "../dom.js";
import { isJoined, plural, watch } from "../watch.js";

const RADIUS = 20;
const WIDE = { width: 760, height: 260, across: 270, down: 85, begin: 0 };
const NARROW = { width: 360, height: 380, across: 110, down: 130, begin: -Math.PI / 2 };
const isNarrow = matchMedia("(max-width: 560px)");
const names = new Map();

export function units(main) {
  const body = h("div", { class: "stack" });
  replace(main, body);
  let shown = "";

  function look() {
    const view = watch.units;
    if (!view) return;
    const text = JSON.stringify(view);
    if (text === shown) return; // what is unchanged keeps its focus and its scroll position
    shown = text;
    replace(body, view.is_gatekeeper ? federation(view) : elsewhere());
  }

  function turn() {
    shown = "";
    look();
  }

  look();
  isNarrow.addEventListener("change", turn);
  return { look, end: () => isNarrow.removeEventListener("change", turn) };
}

function elsewhere() {
  return card("Units", {}, h("p", { class: "empty" },
    `${watch.name(watch.topology.node_id)} is no gatekeeper. Gatekeepers, nodes with a [federation] in their settings, know the units and gateways: open the console of one of them.`));
}

function federation(view) {
  learnNames(view);
  const name = (unit) => names.get(unit.id) ?? `unit ${unit.id.slice(0, 8)}`;
  const links = view.links.filter(isJoined);
  const others = view.units.filter((unit) => !unit.is_own);
  const lost = others.filter((unit) => !unit.is_reached).length;
  const total = (field) => view.links.reduce((sum, link) => sum + link[field], 0);
  return [
    view.failure ? h("p", { class: "error", role: "alert" }, view.failure) : null,
    h("div", { class: "tiles" },
      tile("Place", view.context, `${view.name}, ${view.is_synced ? "in step with its neighbours" : "not in step yet"}`, view.is_synced ? "good" : "warn"),
      tile("Other units", String(others.length - lost), lost ? `${lost} not reached` : "all reached", lost ? "bad" : "good"),
      tile("Links", String(links.length), plural(view.gateways.length, "gateway") + " known", links.length ? "good" : "bad"),
      tile("Rows sent", amount(total("sent_rows")), `${bytes(total("sent_bytes"))} since start`),
      tile("Waiting", bytes(total("queued_bytes")), `batches under way: ${view.open_batches}`)),
    card("Units and gateways", {}, legend(), drawing(view, name)),
    card("Links of this gatekeeper", {}, table("Links of this gatekeeper",
      [{ title: "To" }, { title: "Address", code: true }, { title: "State" }, { title: "Rows sent", number: true }, { title: "Sent", number: true }, { title: "Received", number: true }, { title: "Withheld", number: true }, { title: "Queued", number: true }, { title: "Unacknowledged", number: true }],
      view.links.map((link) => [link.channel, link.address, pill(isJoined(link) ? "up" : link.is_suspected ? "suspected" : "joining"), amount(link.sent_rows), bytes(link.sent_bytes), bytes(link.received_bytes), amount(link.withheld), bytes(link.queued_bytes), String(link.unacknowledged)]),
      "This gatekeeper has no link at the moment.")),
    card("Gateways", {}, table("Gateways that this gatekeeper knows",
      [{ title: "Between" }, { title: "And" }, { title: "State" }, { title: "Level", number: true }, { title: "Cost", number: true }, { title: "Addresses", code: true }],
      view.gateways.map((each) => [...each.ends.map(name), pill(each.status), String(each.level), String(each.cost), each.addresses.filter(Boolean).join(", ")]),
      "No gateway is known.")),
    card("Wanted of other units", {}, table("Wanted of other units", [{ title: "For" }, { title: "Topic" }, { title: "Where", code: true }, { title: "In force" }],
      view.wants.map((want) => [want.name.split(":")[0] === "import" ? "this channel" : "on demand", want.topic, want.where || "all rows", want.active_level >= 0 ? `up to level ${want.active_level}` : "not yet"]),
      "Nothing is wanted of other units.")),
  ];
}

const legend = () => h("p", { class: "legend" }, [["is-here", "here"], ["", "other unit"], ["bad", "not reached"]].map(([kind, text]) => h("span", { class: `key ${kind}` }, text)));

const pill = (status) => h("span", { class: `pill ${{ up: "good", suspected: "bad", removed: "bad" }[status] ?? ""}` }, status);

/** Units are numbers to the protocol. Gatekeepers of this channel are nodes, which have names; a unit at the other end of
 * a link has the name of the channel that answers there; the units that this gatekeeper is in are named after its own. A
 * name stays known when its link is lost. */
function learnNames(view) {
  for (const unit of view.units) {
    const level = unit.level > 1 ? `, level ${unit.level}` : "";
    if (unit.level === 0) names.set(unit.id, watch.name(unit.id));
    else if (unit.is_own) names.set(unit.id, `${view.channel}${level}`);
  }
  const channels = new Map(view.links.map((link) => [link.address, link.channel]));
  for (const gateway of view.gateways)
    gateway.ends.forEach((end, at) => {
      const channel = channels.get(gateway.addresses[at]);
      if (end.level > 0 && channel && !names.has(end.id)) names.set(end.id, end.level > 1 ? `${channel}, level ${end.level}` : channel);
    });
}

/** This gatekeeper in the middle, its fellows and the other units around it, and a line for each gateway. */
function drawing(view, name) {
  const mine = view.chain[0];
  const size = isNarrow.matches ? NARROW : WIDE;
  const middle = { x: size.width / 2, y: size.height / 2 - 10 };
  const around = view.units.filter((unit) => unit.id !== mine && !(unit.is_own && unit.level > 0));
  const places = new Map(around.map((unit, at) => {
    const turn = (2 * Math.PI * at) / around.length + size.begin;
    return [unit.id, { x: middle.x + size.across * Math.cos(turn), y: middle.y + size.down * Math.sin(turn) }];
  }));
  const at = (id) => places.get(id) ?? middle; // a unit that this gatekeeper is in
  const lines = view.gateways.map((each) => {
    const [one, other] = each.ends.map((end) => at(end.id));
    return svg("line", { x1: one.x, y1: one.y, x2: other.x, y2: other.y, class: `gateway ${each.status}`, "data-status": each.status });
  });
  const dot = (id, text, kind, { x, y }) => svg("g", { class: `node unit ${kind}`, "data-unit": text, "data-state": kind, transform: `translate(${x} ${y})` },
    svg("circle", { r: RADIUS + 6, class: "halo" }), svg("circle", { r: RADIUS, class: "dot" }),
    kind === "silent" ? svg("path", { d: "M-7-7 7 7M7-7-7 7", class: "cross" }) : null,
    svg("text", { y: RADIUS + 29 }, text));
  const dots = [dot(mine, `${watch.name(mine)} of ${view.channel}`, "here", middle),
    ...around.map((unit) => dot(unit.id, name(unit), unit.is_reached ? "heard" : "silent", places.get(unit.id)))];
  const told = around.map((unit) => `${name(unit)} ${unit.is_reached ? "is reached" : "is not reached"}`).join(", ");
  return svg("svg", { viewBox: `0 0 ${size.width} ${size.height}`, class: "graph units", role: "img", "aria-label": `Units around ${watch.name(mine)}: ${told || "none"}` },
    svg("g", { class: "links" }, lines), svg("g", { class: "nodes" }, dots));
}
