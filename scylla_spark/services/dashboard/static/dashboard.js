// The little that pages do in the browser. Without it all links and forms work; pages are then as they were when they were loaded.
"use strict";

const remembered = {
  get(name) { try { return localStorage.getItem(name); } catch { return null; } },
  set(name, value) { try { localStorage.setItem(name, value); } catch { /* storage is switched off */ } },
};

// ---- light and dark ----

const themeSwitch = document.querySelector("[data-theme-switch]");
if (themeSwitch) {
  themeSwitch.hidden = false;
  themeSwitch.addEventListener("click", () => {
    const root = document.documentElement;
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    remembered.set("theme", root.dataset.theme);
  });
}

// ---- live: one connection says that something has happened, then the part #live is asked for anew; of Now it brings the part itself ----

const LEAST_MS = 2000;
const live = {
  source: null, paused: sessionStorage.getItem("paused") === "1", asking: false, due: false, last: 0, timer: 0,

  say(text, kind) {
    const place = document.querySelector("[data-pulse]");
    if (place && place.textContent !== text) { place.textContent = text; place.className = `pulse ${kind}`; }
  },
  start() {
    const part = document.getElementById("live");
    if (!part || !part.dataset.live || this.source || this.paused || document.hidden) return;
    this.source = new EventSource(part.dataset.live);
    this.source.addEventListener("open", () => this.say("live", "is-live"));
    this.source.addEventListener("error", () => this.say("connecting", "is-away"));
    let first = true; // what the page shows already
    this.source.addEventListener("overview", () => { if (!first) this.changed(); first = false; });
    this.source.addEventListener("part", (event) => this.put(JSON.parse(event.data)));
    this.source.addEventListener("over", () => location.reload()); // the session is: the login asks for another
  },
  stop() {
    if (this.source) this.source.close();
    this.source = null;
    clearTimeout(this.timer);
    this.timer = 0;
  },
  put(text) {
    const part = document.getElementById("live");
    htmx.swap({ text, sourceElement: part, target: part, swap: "innerMorph" });
  },
  changed() {
    if (this.paused || document.hidden || this.asking || this.timer || chosen()) { this.due = true; return; }
    const every = Number(document.getElementById("live").dataset.every || LEAST_MS);
    const rest = Math.max(0, this.last + every - performance.now());
    this.timer = setTimeout(() => { this.timer = 0; this.refresh(); }, rest);
  },
  async refresh() {
    if (this.paused || this.asking) return;
    this.asking = true;
    this.due = false;
    const began = performance.now();
    try {
      await htmx.ajax("GET", location.href, { target: "#live", select: "#live", swap: "outerMorph" });
    } catch { this.say("connecting", "is-away"); }
    // a server that is slow is asked less often
    this.last = performance.now() + 4 * (performance.now() - began);
    this.asking = false;
    if (this.due) this.changed();
  },
  setPaused(paused) {
    this.paused = paused;
    sessionStorage.setItem("paused", paused ? "1" : "0");
    this.show();
    if (paused) { this.stop(); } else { this.start(); this.refresh(); }
  },
  show() {
    const button = document.querySelector("[data-pause]");
    if (!button) return;
    button.hidden = false;
    button.setAttribute("aria-pressed", String(this.paused));
    button.textContent = this.paused ? "Resume" : "Pause";
    if (this.paused) this.say("paused", "is-paused");
  },
};

document.querySelector("[data-pause]")?.addEventListener("click", () => live.setPaused(!live.paused));
// a page that nobody sees needs no connection; one that was paused stays as it is when it is seen again
document.addEventListener("visibilitychange", () => {
  if (live.paused) return;
  if (document.hidden) { live.stop(); } else { live.start(); live.refresh(); }
});
addEventListener("pagehide", () => live.stop());
addEventListener("pageshow", (event) => { if (event.persisted) live.start(); });
live.show();
live.start();

// ---- rows that are chosen: while there are some, nothing moves below the hand ----

const boxes = () => [...document.querySelectorAll("[data-choice] input[name]:is([type=checkbox])")];
const chosen = () => boxes().filter((box) => box.checked).length;
const sayChosen = () => {
  const all = document.querySelector("[data-choose-all]");
  const place = document.querySelector("[data-chosen]");
  if (!all || !place) return;
  const count = chosen();
  all.hidden = false;
  all.checked = count > 0 && count === boxes().length;
  all.indeterminate = count > 0 && !all.checked;
  place.textContent = count ? `${count} chosen, the list stands still:` : "Those that are chosen:";
};
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-choose-all]")) for (const box of boxes()) box.checked = event.target.checked;
  if (!event.target.closest("[data-choice]")) return;
  sayChosen();
  if (!chosen() && live.due) live.changed();
});
// a list that comes while a box is checked would put another task beside it
document.addEventListener("htmx:before:swap", (event) => { if (chosen()) { live.due = true; event.preventDefault(); } });
document.addEventListener("htmx:after:swap", sayChosen);
sayChosen();

// ---- copy: also over plain HTTP, where there is no navigator.clipboard ----

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const text = document.getElementById(button.dataset.copy).textContent;
  let done = false;
  if (navigator.clipboard && isSecureContext) {
    done = await navigator.clipboard.writeText(text).then(() => true, () => false);
  }
  if (!done) {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "off-screen";
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = done ? "Copied" : "Select it and copy";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
});
for (const button of document.querySelectorAll("[data-copy]")) button.hidden = false;

// ---- lines of a task as they come ----

const lines = document.querySelector("[data-lines]");
if (lines) {
  const known = new Set([...lines.children].map((item) => item.dataset.place));
  const source = new EventSource(lines.dataset.lines);
  source.addEventListener("line", (event) => {
    const line = JSON.parse(event.data);
    const place = `${line.attempt}.${line.seq}`;
    if (known.has(place)) return;
    known.add(place);
    document.querySelector("[data-no-lines]")?.remove();
    const item = document.createElement("li");
    const head = document.createElement("span");
    const text = document.createElement("bdi");
    head.className = "place";
    head.textContent = `${line.attempt} ${line.at.slice(11, 23)} ${line.level || line.stream}`;
    text.className = "free";
    text.textContent = line.text;
    item.append(head, " ", text);
    const follows = lines.scrollHeight - lines.scrollTop - lines.clientHeight < 40;
    lines.append(item);
    while (lines.children.length > 2000) lines.firstElementChild.remove();
    if (follows) lines.scrollTop = lines.scrollHeight;
  });
  source.addEventListener("end", () => source.close());
  addEventListener("pagehide", () => source.close());
}
