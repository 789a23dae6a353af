// Plans that take a while come after the page; boxes that are ticked are counted, and the arrow keys go from one to the
// next. Everything else works without it.
"use strict";

async function textOf(address) {
  const answer = await fetch(address, { headers: { accept: "text/html" } });
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return answer.text();
}

async function fill(place) {
  try {
    place.innerHTML = await textOf(place.dataset.fetch);
    place.removeAttribute("data-fetch");
  } catch (error) {
    const told = place.querySelector(".waiting") || place;
    told.textContent = `This could not be drawn (${error.message}). Reload the page to try again.`;
  }
}

function boxesOf(form) {
  return [...form.querySelectorAll("input[type=checkbox]")];
}

function count(form) {
  const chosen = form.querySelectorAll("input:checked").length;
  const button = form.querySelector("[data-compare]");
  button.disabled = chosen < 2 || chosen > 8;
  button.textContent = chosen > 1 ? `Compare ${chosen}` : "Compare";
}

function walk(form, event) {
  if (event.ctrlKey || event.altKey || event.metaKey || !event.target.matches("input[type=checkbox]")) return;
  const boxes = boxesOf(form);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step) boxes[boxes.indexOf(event.target) + step]?.focus();
  else if (event.key === "Enter") form.querySelector("[data-compare]").click();
  else return;
  event.preventDefault();
}

for (const place of document.querySelectorAll("[data-fetch]")) fill(place);
for (const form of document.querySelectorAll("form.runs")) {
  form.addEventListener("change", () => count(form));
  form.addEventListener("keydown", (event) => walk(form, event));
  count(form);
}
