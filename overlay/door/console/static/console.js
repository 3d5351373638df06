// The console: a header, views, and one watch of the node. A view is a function of <main> and of what follows the name in
// the address (`#topics/orders`); it returns what to call when there is news. To add one, name it in VIEWS.

import { forgetCharts, resizeCharts } from "./charts.js";
import { token } from "./door.js";
import { h, replace } from "./dom.js";
import { clients } from "./views/clients.js";
import { interest } from "./views/interest.js";
import { overview } from "./views/overview.js";
import { tail } from "./views/tail.js";
import { topics } from "./views/topics.js";
import { units } from "./views/units.js";
import { watch } from "./watch.js";

const VIEWS = {
  overview: { title: "Overview", show: overview },
  topics: { title: "Topics", show: topics },
  tail: { title: "Tail", show: tail },
  interest: { title: "Interest", show: interest },
  clients: { title: "Clients", show: clients },
  units: { title: "Units", show: units },
};

const find = (id) => document.getElementById(id);
let current = null;

function go() {
  const { view, argument } = addressed();
  current?.end?.();
  replace(find("tabs"), Object.entries(VIEWS).map(([id, { title }]) => h("a", { href: `#${id}`, "aria-current": id === view ? "page" : null }, title)));
  current = VIEWS[view].show(find("main"), argument);
  document.title = `${VIEWS[view].title} · m4cast`;
}

/** The view that the address names, and what it names of it; an address that makes no sense leads to the overview. */
function addressed() {
  const [name, argument] = location.hash.slice(1).split("/");
  try {
    if (Object.hasOwn(VIEWS, name)) return { view: name, argument: argument ? decodeURIComponent(argument) : null };
  } catch (error) {
    if (!(error instanceof URIError)) throw error;
  }
  return { view: "overview", argument: null };
}

watch.addEventListener("look", () => {
  const { failure, topology } = watch;
  const link = find("link");
  const isLive = !failure;
  link.className = `pill ${isLive ? "good" : "bad"}`;
  link.textContent = isLive ? "live" : failure.code === "unauthenticated" ? "token needed" : "node does not answer, trying again";
  if (topology) {
    find("channel").textContent = topology.channel;
    find("here").textContent = watch.name(topology.node_id);
  }
  if (failure?.code === "unauthenticated" && !find("token-dialog").open && !asked) askForToken();
  current?.look?.();
});
watch.addEventListener("event", () => current?.events?.());
addEventListener("hashchange", go);
addEventListener("resize", resizeCharts);

// ---- the token

let asked = false;

function askForToken() {
  asked = true;
  find("token-value").value = "";
  find("token-dialog").showModal();
}

find("token").addEventListener("click", askForToken);
find("token-dialog").addEventListener("close", () => {
  const dialog = find("token-dialog");
  if (dialog.returnValue === "use") token.set(find("token-value").value.trim());
  if (dialog.returnValue === "forget") token.set("");
  if (dialog.returnValue !== "cancel") asked = false;
  find("token-value").value = "";
  watch.look();
});

// ---- light and dark

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
find("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const isDark = (root.dataset.theme ?? (prefersDark.matches ? "dark" : "light")) === "dark";
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("m4cast-theme", root.dataset.theme);
  repaint();
});
prefersDark.addEventListener("change", repaint);

function repaint() {
  forgetCharts();
  current?.look?.();
}

go();
watch.look();
