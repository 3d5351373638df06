// The node's web door: requests with the user's token, and tails that survive lost connections.
//
// The token is sent in a header and kept in this tab (sessionStorage). It is never part of a URL.

const KEY = "m4cast-token";
const RETRY_MS = 1000;

export class Refused extends Error {
  constructor(status, code, detail) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (secret) => (secret ? sessionStorage.setItem(KEY, secret) : sessionStorage.removeItem(KEY)),
};

function headers(more = {}) {
  const secret = token.get();
  return secret ? { ...more, Authorization: `Bearer ${secret}` } : more;
}

async function asked(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers(options.headers), cache: "no-store", credentials: "omit" });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, said.code ?? "error", said.detail ?? `the node answered with status ${answer.status}`);
}

export async function get(path) {
  return (await asked(path, { signal: AbortSignal.timeout(15_000) })).json();
}

export async function lines(path) {
  const text = await (await asked(path, { headers: { Accept: "application/x-ndjson" }, signal: AbortSignal.timeout(15_000) })).text();
  return text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
}

export const topicPath = (topic, rest = "") => `/topics/${encodeURIComponent(topic)}${rest}`;

/**
 * Follows a topic until `signal` ends it. `on` has: row(row), live(whether it has every row of the topic), lost(), refused(error).
 * After a lost connection it continues behind the last row it got, so no row is missed or shown twice.
 */
export async function follow(path, signal, on) {
  let last = null;
  while (!signal.aborted) {
    try {
      const answer = await asked(path, { signal, headers: last ? { "Last-Event-ID": last } : {} });
      on.live(answer.headers.get("M4cast-Rows") === "all");
      for await (const event of events(answer.body)) {
        if (event.name === "refused") throw new Refused(400, event.data.code, event.data.detail);
        if (event.data) on.row(event.data);
        if (event.id) last = event.id;
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status < 500) return on.refused(error);
    }
    if (signal.aborted) return;
    on.lost();
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

async function* events(body) {
  let text = "";
  for await (const chunk of body.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    const whole = text.split("\n\n");
    text = whole.pop();
    for (const one of whole) yield parsed(one);
  }
}

function parsed(text) {
  const event = { name: "message", id: null, data: null };
  for (const line of text.split("\n")) {
    const [, field, value] = /^(\w+): ?(.*)$/.exec(line) ?? [];
    if (field === "id") event.id = value;
    else if (field === "event") event.name = value;
    else if (field === "data") event.data = JSON.parse(value);
  }
  return event;
}
