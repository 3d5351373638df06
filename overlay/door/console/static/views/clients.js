// Clients of the channel: where each is attached, and how many rows wait for those that are attached to this node.

import { get } from "../door.js";
import { amount, card, h, replace, seconds, table, tile } from "../dom.js";
import { watch } from "../watch.js";

export function clients(main) {
  const tiles = h("div", { class: "tiles" });
  const list = h("div");
  const error = h("p", { class: "error", role: "alert" });
  const more = h("button", { type: "button", onclick: () => turn(next) }, "Next clients");
  const first = h("button", { type: "button", onclick: () => turn("") }, "First clients");
  let [after, next] = ["", null];
  replace(main, error, tiles, card("Clients", {}, list, h("div", { class: "row" }, first, more)));

  function turn(key) {
    after = key;
    look();
  }

  async function look() {
    try {
      const page = await get(`/clients?after=${encodeURIComponent(after)}`);
      error.textContent = "";
      show(page.clients);
      next = page.next;
      first.hidden = after === "";
      more.hidden = next === null;
    } catch (refusal) {
      error.textContent = refusal.message;
    }
  }

  function show(page) {
    const now = Date.now();
    const here = page.filter((each) => each.waiting !== null);
    const away = here.filter((each) => !each.online);
    const waiting = (each) => Math.max(0, ...each.waiting.map((profile) => profile.waiting_max));
    replace(tiles,
      tile("Clients", String(page.length), after || next ? "on this page" : "on the channel"),
      tile("Attached here", String(here.length), `${here.length - away.length} connected, ${away.length} away`),
      tile("Longest wait", `${amount(Math.max(0, ...here.map(waiting)))} rows`, "at most, for one profile"));
    replace(list, table("Clients and what waits for them",
      [{ title: "Client" }, { title: "State" }, { title: "Waiting, at most", number: true }, { title: "Profile" }, { title: "Topic" }, { title: "Where", code: true }, { title: "Attached to" }, { title: "Since" }],
      page.flatMap((each) => rowsOf(each, now)),
      "This node knows no client with a key (m4cast client makes one)."));
  }

  look();
  return { look };
}

/** A row for each profile; the client itself is named in the first. What matters most comes first, for narrow windows. */
function rowsOf(client, now) {
  const who = [client.key, state(client)];
  const where = [client.node || watch.name(client.node_id), `${seconds(Math.max(0, (now - client.since_ms) / 1000))} ago`];
  if (!client.waiting?.length) return [[...who, client.waiting === null ? "not known here" : "–", "–", "–", "–", ...where]];
  return client.waiting.map((each, at) => [...(at ? ["", ""] : who), amount(each.waiting_max), each.profile, each.topic, each.where ?? "all rows", ...(at ? ["", ""] : where)]);
}

function state({ online }) {
  if (online === null) return h("span", { class: "pill" }, "elsewhere");
  return h("span", { class: `pill ${online ? "good" : "away"}` }, online ? "connected" : "away");
}
