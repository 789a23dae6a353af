// Live figures: pieces of the page are replaced as the server sends them. A hidden page takes none.
"use strict";
(() => {
  const lamp = document.getElementById("live");
  const said = document.getElementById("said");
  const places = new Map([...document.querySelectorAll("[data-part]")].map((one) => [one.dataset.part, one]));
  const AGAIN_MS = 5000;
  let source = null;
  let again = 0;
  let told = null;

  const show = (state, words) => {
    lamp.hidden = false;
    lamp.dataset.state = state;
    lamp.textContent = words;
  };

  // For those who hear the page: only what changes its meaning, never figures.
  const tell = (reading) => {
    const words = { up: "the deployment is up", down: "no deployment is running", silent: "the deployment does not answer" };
    if (told !== null && told !== reading.state) said.textContent = words[reading.state] ?? "";
    told = reading.state;
  };

  const take = (event) => {
    const reading = JSON.parse(event.data);
    for (const [name, markup] of Object.entries(reading.parts)) {
      const place = places.get(name);
      if (!place || place.contains(document.activeElement)) continue;
      place.innerHTML = markup;
    }
    show("on", "live");
    tell(reading);
  };

  const stop = () => {
    clearTimeout(again);
    if (source) source.close();
    source = null;
  };

  const start = () => {
    stop();
    source = new EventSource("/live");
    source.onmessage = take;
    source.onerror = () => {
      show("off", "reconnecting");
      if (source && source.readyState === EventSource.CLOSED) {
        stop();
        again = setTimeout(start, AGAIN_MS);
      }
    };
  };

  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : start()));
  addEventListener("pagehide", stop);
  addEventListener("pageshow", (event) => event.persisted && start());
  if (!document.hidden) start();
})();
