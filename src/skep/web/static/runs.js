// Figures and reports that take a while come after the page; boxes that are ticked are counted. Nothing else needs it.
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

async function complete(form) {
  const body = form.querySelector("tbody");
  const ticked = new Set([...form.querySelectorAll("input:checked")].map((box) => box.value));
  try {
    body.innerHTML = await textOf(form.dataset.rows);
  } catch {
    return; // the list stands as it is; a reload tries again
  }
  for (const box of body.querySelectorAll("input[type=checkbox]")) box.checked = ticked.has(box.value);
}

function count(form) {
  const chosen = form.querySelectorAll("input:checked").length;
  const button = form.querySelector("[data-compare]");
  button.disabled = chosen < 2 || chosen > 8;
  button.textContent = chosen > 1 ? `Compare ${chosen}` : "Compare";
}

for (const place of document.querySelectorAll("[data-fetch]")) fill(place);
for (const form of document.querySelectorAll("form.runs")) {
  form.addEventListener("change", () => count(form));
  count(form);
  if (form.dataset.rows) complete(form).then(() => count(form));
}
