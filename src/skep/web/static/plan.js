// Where the machine's own cards are planned for, their number is not asked. Nothing else needs it.
"use strict";

const form = document.querySelector("form.plan");
if (form) {
  const count = form.elements.count;
  const card = form.elements.card;
  const rig = form.elements.rig;
  const settle = () => {
    count.disabled = card.value === "this" || rig.value.trim() !== "";
    card.disabled = rig.value.trim() !== "";
  };
  for (const field of [card, rig]) field.addEventListener("input", settle);
  settle();
}
