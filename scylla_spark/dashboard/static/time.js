// The slider says which moment it stands at, and asks for it once it rests. Without this, the button does.
"use strict";

const REST_MS = 600; // keys move it a step at a time
const moment = document.querySelector("[data-moment]");
if (moment) {
  const slider = moment.querySelector("input[type=range]");
  const shown = moment.querySelector("[data-shown]");
  let timer = 0;
  slider.addEventListener("input", () => {
    const at = new Date(Number(moment.dataset.begin) + Number(slider.value) * 60000);
    shown.textContent = at.toISOString().slice(0, 16).replace("T", " ");
  });
  slider.addEventListener("change", () => {
    clearTimeout(timer);
    timer = setTimeout(() => moment.requestSubmit(), REST_MS);
  });
}
