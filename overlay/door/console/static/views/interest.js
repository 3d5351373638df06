// Who wants what: registered filters of all nodes, readers and their lag, and what filters cost at this node.

import { get } from "../door.js";
import { amount, card, h, replace, seconds, table } from "../dom.js";
import { watch } from "../watch.js";

export function interest(main) {
  const wanted = h("div");
  const readers = h("div");
  const costs = h("div");
  const error = h("p", { class: "error", role: "alert" });
  replace(main, error, card("Wanted rows", {}, wanted), card("Readers", {}, readers), card("CPU of filters", {}, costs));

  async function look() {
    try {
      const [view, leases, status] = await Promise.all([get("/subscriptions"), get("/readers"), get("/status")]);
      error.textContent = "";
      show(view, leases, status.filter_cpu_ms);
    } catch (refusal) {
      error.textContent = refusal.message;
    }
  }

  function show(view, leases, spent) {
    const now = Date.now();
    replace(wanted, table("Registrations of all nodes", [{ title: "Node" }, { title: "Topic" }, { title: "Where", code: true }, { title: "Since" }],
      view.registrations.map((each) => [each.node || watch.name(each.node_id), each.topic ?? `unknown (${each.topic_hash})`, each.where || "all rows", ago(now - each.since_ms)]),
      "No node has registered rows of a topic as wanted (m4cast subscribe does that)."),
    view.has_more ? h("p", { class: "muted" }, "There are more than are shown.") : null);
    replace(readers, table("Readers that this node retains rows for", [{ title: "Reader" }, { title: "Topics" }, { title: "Rows behind", number: true }, { title: "Lease" }, { title: "Lost rows", number: true }],
      leases.map((each) => [each.reader, each.topics === null ? "all" : each.topics.join(", "), amount(each.rows_behind), each.live ? `for ${seconds((each.expires_at_ms - now) / 1000)}` : "expired", String(cuts(each))]),
      "No reader has a lease here."));
    replace(costs, table("CPU time of filtered reads since the node started", [{ title: "Client" }, { title: "CPU", number: true }],
      Object.entries(spent).sort(([, one], [, other]) => other - one).map(([client, ms]) => [client, seconds(ms / 1000)]),
      "No filtered read has been made at this node."));
  }

  look();
  return { look };
}

const ago = (ms) => `${seconds(Math.max(0, ms / 1000))} ago`;
const cuts = (reader) => (reader.cuts ?? []).length;
