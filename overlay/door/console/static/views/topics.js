// Topics: what this node has of each, its columns, its streams, and its last rows.

import { get, lines, topicPath } from "../door.js";
import { amount, bytes, card, h, replace, seconds, table } from "../dom.js";
import { rowTable } from "../rows.js";
import { watch } from "../watch.js";

const SHOWN_MAX = 300;
const LAST_ROWS = 20;

export function topics(main, chosen) {
  const search = h("input", { id: "topic-search", type: "search", placeholder: "part of its name", oninput: () => list() });
  const names = h("ul", { class: "names", "aria-label": "Topics" });
  const detail = h("div", { class: "wide" });
  let all = [];
  replace(main, h("div", { class: "split topics" },
    card("Topics", { class: "narrow" }, h("label", { for: "topic-search" }, "Find a topic"), search, names), detail));

  function list() {
    const found = all.filter((topic) => topic.toLowerCase().includes(search.value.toLowerCase()));
    const items = found.slice(0, SHOWN_MAX).map((topic) => h("li", {}, h("a", { href: `#topics/${encodeURIComponent(topic)}`, "aria-current": topic === chosen ? "true" : null }, topic)));
    if (found.length > SHOWN_MAX) items.push(h("li", { class: "muted" }, `and ${found.length - SHOWN_MAX} more: search for them`));
    replace(names, items.length ? items : h("li", { class: "muted" }, search.value ? "No topic has this in its name." : "No topic yet, or none that this token may read."));
  }

  async function look() {
    try {
      const now = (await get("/topics")).sort();
      if (JSON.stringify(now) !== JSON.stringify(all)) {
        all = now;
        list();
      }
    } catch { /* the header says that the node does not answer */ }
  }

  look();
  if (chosen) describe(detail, chosen);
  else replace(detail, card("Rows", {}, h("p", { class: "empty" }, "Choose a topic to see its columns, streams and last rows.")));
  return { look };
}

async function describe(detail, topic) {
  try {
    const about = await get(topicPath(topic));
    const rows = rowTable(`Last rows of ${topic}`, (about.columns ?? []).map((column) => column.name));
    const streams = Object.entries(about.streams);
    replace(detail,
      card(topic, {},
        h("dl", { class: "facts" },
          fact("Rows here", amount(about.rows)), fact("Bytes", bytes(about.bytes)), fact("Streams", String(streams.length)),
          fact("Retention", retention(about.retention))),
        about.conflict ? h("p", { class: "error", role: "alert" }, about.conflict) : null,
        h("p", {}, h("a", { href: `#tail/${encodeURIComponent(topic)}`, class: "button" }, "Follow this topic"))),
      h("div", { class: "pair" }, card("Columns", {}, table(`Columns of ${topic}`, [{ title: "Name" }, { title: "Type", code: true }], (about.columns ?? []).map((column) => [column.name, column.type]), "No columns are known.")),
      card("Streams", {}, table(`Streams of ${topic}`, [{ title: "Origin" }, { title: "First", number: true }, { title: "Next", number: true }, { title: "Bytes", number: true }],
        streams.map(([origin, stream]) => [watch.name(origin), amount(stream.low), amount(stream.next), bytes(stream.bytes)]), "Nothing is retained."))),
      card("Last rows", {}, rows.element));
    for (const row of await lastRows(topic, streams)) rows.put(row, LAST_ROWS);
  } catch (error) {
    replace(detail, card(topic, {}, h("p", { class: "error", role: "alert" }, error.message)));
  }
}

/** A few rows from the end of each stream, oldest first. */
async function lastRows(topic, streams) {
  const each = Math.max(1, Math.ceil(LAST_ROWS / Math.max(1, streams.length)));
  const from = streams.map(([origin, stream]) => `${origin}:${Math.max(stream.low, stream.next - each)}`).join(",");
  if (!from) return [];
  const found = await lines(topicPath(topic, `/rows?from=${encodeURIComponent(from)}&limit=${LAST_ROWS * 2}&on_missing=skip`));
  return found.sort((one, other) => (one._published_at < other._published_at ? -1 : 1));
}

function retention({ max_bytes: most, max_age_ms: age, is_default: byDefault }) {
  const limits = [most ? bytes(most) : null, age ? seconds(age / 1000) : null].filter(Boolean).join(", ");
  return `${limits || "everything"}${byDefault ? " (the node's)" : ""}`;
}

const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
