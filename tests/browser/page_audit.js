// What a reader of the page would stumble over: controls without a name, small or faint text, a page wider than its window.
(() => {
  const visible = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && element.getBoundingClientRect().width > 1;
  const parsed = (colour) => {
    const [red, green, blue, alpha = 1] = colour.match(/[\d.]+/g).map(Number);
    return colour.startsWith("color(") ? { red: red * 255, green: green * 255, blue: blue * 255, alpha } : { red, green, blue, alpha };
  };
  const luminance = ({ red, green, blue }) => {
    const linear = [red, green, blue].map((each) => (each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  };
  const ground = (element) => {
    const before = element instanceof SVGElement ? element.previousElementSibling : null;
    if (before?.tagName === "rect" && element.classList.contains("in")) return parsed(getComputedStyle(before).fill); // a text in a cell
    for (let at = element; at; at = at.parentElement) {
      const colour = parsed(getComputedStyle(at).backgroundColor);
      if (colour.alpha > 0.99) return colour;
    }
    return { red: 255, green: 255, blue: 255 };
  };
  const contrast = (one, other) => {
    const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
    return (light + 0.05) / (dark + 0.05);
  };
  const texts = [...document.querySelectorAll("body *")].filter((each) => visible(each) && [...each.childNodes].some((child) => child.nodeType === 3 && child.data.trim()) && !["SCRIPT", "OPTION", "CAPTION"].includes(each.tagName));
  const faint = texts.filter((each) => !each.disabled).map((each) => {
    const style = getComputedStyle(each);
    return [each.textContent.trim().slice(0, 40), contrast(parsed(each instanceof SVGElement ? style.fill : style.color), ground(each))];
  }).filter(([, ratio]) => ratio < 4.5);
  const small = texts.filter((each) => parseFloat(getComputedStyle(each).fontSize) < 12).map((each) => each.textContent.trim());
  const controls = [...document.querySelectorAll("a, button, input, select, [role=button], [role=region], [tabindex='0']")].filter(visible);
  const unnamed = controls.filter((each) => !(each.getAttribute("aria-label") || each.getAttribute("aria-labelledby") || each.labels?.length || each.textContent.trim())).map((each) => each.outerHTML.slice(0, 120));
  const ids = [...document.querySelectorAll("[id]")].map((each) => each.id);
  return {
    faint, small, unnamed, texts: texts.length, controls: controls.length, width: document.documentElement.scrollWidth,
    twice: ids.filter((id, at) => ids.indexOf(id) !== at), levels: document.querySelectorAll("h1").length,
  };
})()
