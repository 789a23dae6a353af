// Pictures become charts: tips under mouse, finger and arrow keys; those over time can be dragged and zoomed. Vega comes
// after the page is there, and only where there is a picture; without it the pictures stay as the server drew them.
"use strict";
(() => {
  // What is nearest to the pointer tells what the point itself would.
  const patch = (vega) => {
    for (const mark of vega.marks) if (mark.name?.endsWith("_voronoi")) mark.encode.update.tooltip = { signal: "datum.tooltip" };
    return vega;
  };
  // Nothing is evaluated as a script and no style is put into the page: the headers forbid both.
  const OPTIONS = {
    ast: true, actions: false, defaultStyle: false, renderer: "svg", tooltip: { disableDefaultStyle: true }, patch,
  };
  const tip = document.createElement("output");
  tip.id = "vg-tooltip-element";
  tip.className = "vg-tooltip";

  const rows_of = ({ same, columns, rows }) =>
    rows.map((row) => ({ ...same, ...Object.fromEntries(columns.map((name, index) => [name, row[index]])) }));

  // A mark tells its own words where it has some, else its place on both axes.
  const with_tips = (part) => {
    const { description, x, y, tooltip } = part.encoding ?? {};
    if (description) {
      part.encoding.tooltip = { condition: { test: `isValid(datum['${description.field}'])`, ...description }, value: null };
    } else if (/^(point|bar)$/.test(part.mark?.type) && x?.field && y?.field && !tooltip) {
      part.encoding.tooltip = [x, y].map(({ field, type, title }) => ({
        field, type, title: title ?? " ", ...(type === "quantitative" && { format: ",.4~r" }),
      }));
    }
    part.layer?.forEach(with_tips);
  };

  // As if the mouse were there.
  const point_at = (clientX, clientY) => {
    const event = new PointerEvent("pointermove", { clientX, clientY, bubbles: true });
    document.elementFromPoint(clientX, clientY)?.dispatchEvent(event);
  };
  const hide = () => tip.classList.remove("visible");

  const follow_keys = (chart, view, spec) => {
    const points = [...spec.datasets.points].sort((a, b) => a.t - b.t);
    let place = -1;
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
      if (!step) return;
      event.preventDefault();
      const begin = place < 0 && step < 0 ? points.length : place;
      place = Math.max(0, Math.min(points.length - 1, begin + step));
      const frame = chart.querySelector("svg").getBoundingClientRect();
      const [left, top] = view.origin();
      const { t, y } = points[place];
      point_at(frame.left + left + view.scale("x")(t), frame.top + top + view.scale("y")(y));
    });
    chart.addEventListener("blur", hide);
  };

  const draw = async (chart) => {
    const pictures = [...chart.querySelectorAll("svg")];
    const shown = pictures.find((one) => one.getBoundingClientRect().width > 0);
    if (!shown || "drawn" in chart.dataset) return;
    chart.dataset.drawn = "";
    const spec = JSON.parse(chart.querySelector("script").textContent);
    for (const [name, packed] of Object.entries(spec.datasets ?? {})) spec.datasets[name] = rows_of(packed);
    const over_time = spec.datasets?.points;
    if (over_time) {
      const box = shown.getBoundingClientRect();
      Object.assign(spec, { width: box.width, height: box.height });
      spec.encoding.x.axis.tickCount = Math.max(3, Math.round(box.width / 100));
    }
    with_tips(spec);
    const place = document.createElement("div");
    const { view } = await vegaEmbed(place, spec, OPTIONS);
    chart.replaceChildren(place);
    chart.addEventListener("click", (event) => event.pointerType === "touch" && point_at(event.clientX, event.clientY));
    if (!over_time) return;
    chart.tabIndex = 0;
    chart.role = "group";
    chart.ariaLabel = "Left and right arrow go from point to point";
    follow_keys(chart, view, spec);
    new ResizeObserver(() => view.width(chart.clientWidth).runAsync()).observe(chart);
  };

  const draw_all = () => document.querySelectorAll(".chart").forEach(draw);

  const begin = () => {
    if (!document.querySelector(".chart")) return false;
    const vega = document.createElement("script");
    vega.src = document.documentElement.dataset.vega;
    vega.onload = () => {
      document.body.append(tip);
      draw_all();
      new MutationObserver(draw_all).observe(document.querySelector("main"), { childList: true, subtree: true });
      document.addEventListener("toggle", draw_all, true);
      document.addEventListener("pointerdown", (event) => event.target.closest(".chart") || hide());
    };
    document.head.append(vega);
    return true;
  };

  // A report may come later than its page.
  addEventListener("load", () => {
    if (begin()) return;
    const waiting = new MutationObserver(() => begin() && waiting.disconnect());
    waiting.observe(document.querySelector("main"), { childList: true, subtree: true });
  });
})();
