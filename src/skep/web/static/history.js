// The crosshair of pictures over time: the point nearest to the mouse, finger or arrow key, and what it says.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

  // Times are those of the wall's clock where the picture was drawn, as on its axis.
  const clock = (at) => {
    const wall = new Date(at * 1000);
    const two = (n) => String(n).padStart(2, "0");
    const day = `${DAYS[wall.getUTCDay()]} ${wall.getUTCDate()} ${MONTHS[wall.getUTCMonth()]}`;
    return `${day}, ${two(wall.getUTCHours())}:${two(wall.getUTCMinutes())}`;
  };

  const nearest = (rows, at) => {
    let low = 0;
    let high = rows.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle][0] < at) low = middle + 1;
      else high = middle;
    }
    return low > 0 && at - rows[low - 1][0] < rows[low][0] - at ? low - 1 : low;
  };

  const draw = (chart) => {
    const data = JSON.parse(chart.querySelector(".chart-data").textContent);
    const tip = chart.querySelector(".chart-tip");
    const tracks = data.tracks.filter((track) => track.points.length || track.band.length);
    if (!tracks.length) return;
    const rows = (track) => (track.points.length ? track.points : track.band);
    const moments = [...new Set(tracks.flatMap((track) => rows(track).map((row) => row[0])))].sort((a, b) => a - b);
    const steps = moments.map((moment) => [moment]);
    let place = -1;

    const shown = () => [...chart.querySelectorAll("svg.series")].find((svg) => svg.clientWidth > 0 || svg.getBoundingClientRect().width > 0);
    const part = (name, attributes) => {
      const made = document.createElementNS(SVG, name);
      for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
      return made;
    };

    const clear = () => {
      place = -1;
      tip.hidden = true;
      for (const cross of chart.querySelectorAll(".cross")) cross.replaceChildren();
    };

    const show = (index) => {
      const svg = shown();
      if (!svg) return;
      place = Math.max(0, Math.min(moments.length - 1, index));
      const at = moments[place];
      const frame = Object.fromEntries(Object.entries(svg.dataset).map(([key, value]) => [key, Number(value)]));
      const x = frame.left + (at / (frame.until - frame.since)) * (frame.right - frame.left);
      const y = (value) => {
        const share = (value - frame.low) / (frame.high - frame.low);
        return frame.bottom - Math.max(0, Math.min(1, share)) * (frame.bottom - frame.top);
      };
      const cross = svg.querySelector(".cross");
      const line = part("path", { d: `M${x} ${frame.top}V${frame.bottom}`, class: "cross-line" });
      const dots = [];
      const lines = [clock(data.since + at)];
      for (const track of tracks) {
        const found = rows(track)[nearest(rows(track), at)];
        if (Math.abs(found[0] - at) > (frame.until - frame.since) / 60) continue;
        dots.push(part("circle", { cx: x, cy: y(found[1]), r: 4.5, class: "cross-dot" }));
        const busy = track.points.length && found[2] ? ", other requests were running" : "";
        const name = tracks.length > 1 ? `${track.name}: ` : "";
        lines.push(`${name}${found[1].toLocaleString("en")} ${data.unit}${busy}`);
        if (track.points.length && track.band.length && tracks.length === 1) {
          const band = track.band[nearest(track.band, at)];
          const [middle, low, high] = band.slice(1).map((value) => value.toLocaleString("en"));
          lines.push(`rolling median ${middle}`, `p25 to p75 ${low}–${high}`);
        }
      }
      for (const [moment, words] of data.flags) {
        if (Math.abs(moment - at) < (frame.until - frame.since) / 150) lines.push(`⚑ ${words}`);
      }
      cross.replaceChildren(line, ...dots);
      tip.replaceChildren(...lines.flatMap((words, i) => (i ? [document.createElement("br"), words] : [words])));
      tip.hidden = false;
      const box = chart.getBoundingClientRect();
      const drawn = svg.getBoundingClientRect();
      const left = drawn.left - box.left + (x / svg.viewBox.baseVal.width) * drawn.width;
      const over = left + 14 + tip.offsetWidth > box.width;
      const most = Math.max(0, box.width - tip.offsetWidth);
      tip.style.left = `${Math.min(most, Math.max(0, over ? left - 14 - tip.offsetWidth : left + 14))}px`;
      tip.style.top = `${drawn.top - box.top + (frame.top / svg.viewBox.baseVal.height) * drawn.height + 4}px`;
    };

    const follow = (event) => {
      const svg = shown();
      if (!svg) return;
      const drawn = svg.getBoundingClientRect();
      const x = ((event.clientX - drawn.left) / drawn.width) * svg.viewBox.baseVal.width;
      const { left, right, since, until } = svg.dataset;
      const at = ((x - left) / (right - left)) * (until - since);
      if (x < left - 8 || x > Number(right) + 8) clear();
      else show(nearest(steps, at));
    };
    // A finger that was lifted has left, but what it pointed at is still to be read; a tap elsewhere ends it.
    chart.addEventListener("pointermove", follow);
    chart.addEventListener("pointerdown", follow);
    chart.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && clear());
    document.addEventListener("pointerdown", (event) => chart.contains(event.target) || clear());
    chart.addEventListener("blur", clear);
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (step) show(place < 0 ? (step < 0 ? moments.length - 1 : 0) : place + step);
      else if (event.key === "Home") show(0);
      else if (event.key === "End") show(moments.length - 1);
      else if (event.key === "Escape") clear();
      else return;
      event.preventDefault();
    });
  };

  // A choice takes effect at once; without this script the button does it.
  const form = document.querySelector("form.pick");
  if (form) form.addEventListener("change", (event) => {
    if (event.target.name === "target" && form.elements.series) form.elements.series.disabled = true;
    if (event.target.tagName === "SELECT") form.requestSubmit();
  });
  document.querySelectorAll(".chart").forEach(draw);
})();
