// A tail with a filter. It survives lost connections, and counts what it got. If the node says that the tail has every
// row of its topic, the numbers of an origin's rows prove that none is missing; else it counts the numbers passed over.

import { follow, get, topicPath } from "../door.js";
import { amount, card, h, replace } from "../dom.js";
import { rowTable } from "../rows.js";
import { plural } from "../watch.js";

const SHOWN_MAX = 200;
const PAINT_MS = 100;

export function tail(main, chosen) {
  const topic = h("input", { id: "tail-topic", required: true, value: chosen ?? "", list: "tail-topics", autocomplete: "off", spellcheck: "false" });
  const known = h("datalist", { id: "tail-topics" });
  const where = h("input", { id: "tail-where", placeholder: "amount > 100 AND country = 'NL'", autocomplete: "off", spellcheck: "false", "aria-describedby": "tail-error" });
  const from = h("select", { id: "tail-from" }, h("option", { value: "latest" }, "now"), h("option", { value: "earliest" }, "the first row"));
  const error = h("p", { id: "tail-error", class: "error", role: "alert" });
  const state = h("span", { class: "pill", id: "tail-state", role: "status" }, "not started");
  const counts = h("p", { class: "muted", id: "tail-counts" });
  const explained = h("p", { class: "muted", id: "tail-explained", role: "status" });
  const stop = h("button", { type: "button", id: "tail-stop", disabled: true, onclick: () => end("stopped") }, "Stop");
  const rows = h("div");
  let running = null;

  const form = h("form", { class: "form", onsubmit: (event) => { event.preventDefault(); start(); } },
    h("div", {}, h("label", { for: "tail-topic" }, "Topic"), topic, known),
    h("div", { class: "grow" }, h("label", { for: "tail-where" }, "Where (a filter; empty: all rows)"), where),
    h("div", {}, h("label", { for: "tail-from" }, "From"), from),
    h("div", { class: "row" }, h("button", { class: "primary", id: "tail-start" }, "Follow"), h("button", { type: "button", id: "tail-explain", onclick: explain }, "Explain"), stop));
  replace(main, card("Tail", {}, form, error, explained, h("div", { class: "row between" }, state, counts), rows));
  get("/topics").then((names) => replace(known, names.map((name) => h("option", { value: name })))).catch(() => {});

  function query(more) {
    const parameters = new URLSearchParams({ ...more, ...(where.value.trim() ? { where: where.value.trim() } : {}) });
    return `?${parameters}`;
  }

  function say(kind, text) {
    state.className = `pill ${kind}`;
    state.textContent = text;
  }

  function end(text) {
    running?.abort();
    running = null;
    stop.disabled = true;
    say("", text);
  }

  function start() {
    end("starting");
    error.textContent = "";
    const shown = rowTable(`Rows of ${topic.value}`, []);
    replace(rows, shown.element);
    const seen = { rows: 0, passed: 0, resumed: 0, next: new Map(), isLost: false, hasAll: true };
    const isFiltered = Boolean(where.value.trim());
    const waiting = []; // a busy topic has more rows a second than a page can show
    let later = null;
    const paint = () => {
      later = null;
      for (const row of waiting.splice(0)) shown.put(row, SHOWN_MAX);
      report(seen, isFiltered);
    };
    running = new AbortController();
    stop.disabled = false;
    follow(topicPath(topic.value, `/tail${query({ from: from.value, on_missing: "skip" })}`), running.signal, {
      row(row) {
        const expected = seen.next.get(row._origin);
        if (expected !== undefined) seen.passed += row._sequence - expected;
        seen.next.set(row._origin, row._sequence + 1);
        seen.rows += 1;
        waiting.push(row);
        if (waiting.length > SHOWN_MAX) waiting.shift();
        later ??= setTimeout(paint, PAINT_MS);
      },
      live(hasAll) {
        if (seen.isLost) seen.resumed += 1;
        seen.isLost = false;
        seen.hasAll &&= hasAll;
        say("good", "live");
        report(seen, isFiltered);
      },
      lost() {
        seen.isLost = true;
        say("bad", "connection lost, trying again");
        report(seen, isFiltered);
      },
      refused(refusal) {
        end("refused");
        error.textContent = refusal.message;
      },
    });
  }

  function report(seen, isFiltered) {
    const proof = isFiltered ? "" : seen.passed ? `, ${plural(seen.passed, "number")} passed over (${reasons(seen)})` : seen.hasAll ? ", none missing" : "";
    const resumed = seen.resumed ? `, resumed ${plural(seen.resumed, "time")}` : "";
    counts.textContent = `${amount(seen.rows)} rows${proof}${resumed}`;
  }

  /** The tail asks for rows that are not retained to be skipped; nothing else can leave out rows of a whole topic. */
  function reasons(seen) {
    return seen.hasAll ? "expired" : "expired, not wanted here, or hidden from this token";
  }

  async function explain() {
    error.textContent = "";
    explained.textContent = "";
    try {
      const found = await get(topicPath(topic.value, `/explain${query({})}`));
      const share = found.rows ? `${amount(found.matching_rows)} of the newest ${amount(found.rows)} rows pass` : "no rows to try it on";
      const batches = found.batches && found.passed_over_batches !== null ? `; ${amount(found.passed_over_batches)} of ${amount(found.batches)} batches need not be read` : "";
      const cost = found.cpu_ms_per_million_rows === null ? "" : `; ${amount(found.cpu_ms_per_million_rows)} ms of CPU per million rows`;
      explained.textContent = `${found.canonical}: ${share}${batches}${cost}.`;
    } catch (refusal) {
      error.textContent = refusal.message;
    }
  }

  if (chosen) start();
  return { end: () => running?.abort() };
}
