// A tuning or a swarm run that goes on is asked for again and again; a hidden page, or one whose reader is inside it,
// waits. What the reader has unfolded stays unfolded, and the fold last touched keeps the keyboard.
"use strict";
(() => {
  const place = document.querySelector("[data-refresh]");
  if (!place) return;
  const EVERY_MS = 5000;
  let shown = place.innerHTML;

  const scrolled = () => [...place.querySelectorAll(".scroll, .roll")].map((one) => one.scrollLeft);

  const fold = () => document.activeElement?.closest?.("details[id] > summary")?.parentElement.id;
  const waits = () => place.contains(document.activeElement) && !fold();

  const put = (markup) => {
    const before = scrolled();
    const unfolded = [...place.querySelectorAll("details[id][open]")].map((one) => one.id);
    const touched = fold();
    place.innerHTML = markup;
    shown = markup;
    [...place.querySelectorAll("details[id]")].forEach((one) => {
      one.open = unfolded.includes(one.id);
      if (one.id === touched) one.querySelector("summary").focus({ preventScroll: true });
    });
    [...place.querySelectorAll(".scroll, .roll")].forEach((one, index) => {
      one.scrollLeft = before[index] ?? 0;
    });
  };

  const look = async () => {
    if (!document.hidden && !waits()) {
      try {
        const answer = await fetch(place.dataset.refresh, { headers: { accept: "text/html" } });
        const markup = answer.ok ? await answer.text() : shown;
        if (markup !== shown) put(markup);
      } catch {
        // the dashboard is away; the next look may find it
      }
    }
    if (place.querySelector("[data-running]")) setTimeout(look, EVERY_MS);
    else place.removeAttribute("data-refresh");
  };

  setTimeout(look, EVERY_MS);
})();
