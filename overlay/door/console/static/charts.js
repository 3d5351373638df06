// Charts over the last minutes, drawn by uPlot in the colours of the page.
/* global uPlot */

import { h } from "./dom.js";

const charts = new Set();

/** `series`: [{name, colour (a custom property of the page), get: () => values}]; `format` writes a value of the axis,
 * whose end is at `least` or higher. */
export function chart(title, series, format, least = 1e-3) {
  const holder = h("div", { class: "plot" }, h("p", { class: "empty" }, "The first values appear after a few seconds."));
  const legend = h("p", { class: "legend" }, series.map((each) => h("span", { class: `key ${each.colour}` }, each.name)));
  const element = h("figure", { "aria-label": title }, h("figcaption", {}, title), legend, holder);
  let plot = null;
  const one = {
    element,
    show(times) {
      if (times.length < 2 || !holder.clientWidth) return;
      const data = [times, ...series.map((each) => each.get())];
      if (plot) return plot.setData(data);
      holder.replaceChildren();
      plot = drawn(holder, series, data, format, least);
    },
    resize: () => plot?.setSize({ width: holder.clientWidth, height: 170 }),
    forget() {
      plot?.destroy();
      plot = null;
    },
  };
  charts.add(one);
  return one;
}

function drawn(holder, series, data, format, least) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return new uPlot({
    width: holder.clientWidth, height: 170, legend: { show: false }, cursor: { y: false },
    scales: { y: { range: (_, low, high) => [0, Math.max((high ?? 0) * 1.15, least)] } },
    axes: [{ ...axis, space: 70, size: 28, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" })) },
      { ...axis, size: 62, space: 34, values: (_, ticks) => ticks.map(format) }],
    series: [{}, ...series.map((each) => ({ stroke: colour(each.colour), fill: `${colour(each.colour)}1f`, width: 2, points: { show: false }, spanGaps: true }))],
  }, data, holder);
}

/** After the page changed its width or its colours. */
export const resizeCharts = () => charts.forEach((each) => each.resize());
export const forgetCharts = () => charts.forEach((each) => each.forget());
