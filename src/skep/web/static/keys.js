// Keys: g and a letter, or a number, go to a page; / goes to the first field; ? shows help. What is chosen in a form
// that only picks what a page shows takes effect at once; without this script its button does it.
"use strict";
(() => {
  const links = [...document.querySelectorAll("nav a[data-key]")];
  const help = document.getElementById("keys");
  const PATIENCE_MS = 1200;
  let after_g = 0;

  const typing = (element) =>
    element.isContentEditable || /^(input|select|textarea)$/i.test(element.tagName);

  const first_field = () =>
    document.querySelector("main input:not([type=hidden]):not([disabled]), main select, main textarea");

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (help.open && event.key !== "?") return;
    const waited = after_g && event.timeStamp - after_g < PATIENCE_MS;
    after_g = 0;
    let link = null;
    if (waited) link = links.find((one) => one.dataset.key === event.key);
    else if (event.key === "g") after_g = event.timeStamp;
    else if (/^[1-9]$/.test(event.key)) link = links[Number(event.key) - 1];
    else if (event.key === "?") help.open ? help.close() : help.showModal();
    else if (event.key === "/") {
      const field = first_field();
      if (field) {
        event.preventDefault();
        field.focus();
      }
    }
    if (link) {
      event.preventDefault();
      link.click();
    }
  });

  const form = document.querySelector("form.pick");
  form?.addEventListener("change", (event) => {
    if (event.target.name === "target" && form.elements.series) form.elements.series.disabled = true;
    if (event.target.tagName === "SELECT") form.requestSubmit();
  });
})();
