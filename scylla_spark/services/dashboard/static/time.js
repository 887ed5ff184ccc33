// The slider says which moment it stands at, and asks for it when it is let go. Without this, the button does.
"use strict";

const moment = document.querySelector("[data-moment]");
if (moment) {
  const slider = moment.querySelector("input[type=range]");
  const shown = moment.querySelector("[data-shown]");
  slider.addEventListener("input", () => {
    const at = new Date(Number(moment.dataset.begin) + Number(slider.value) * 60000);
    shown.textContent = at.toISOString().slice(0, 16).replace("T", " ");
  });
  slider.addEventListener("change", () => moment.requestSubmit());
}
