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

// ---- streams of events: a page has them while somebody sees it, as browsers keep six connections for all pages of an address ----

const LEAST_MS = 2000;
const MOST_MS = 60_000;
const REOPENED_MS = 3_600_000; // a new stream brings a new text of the session, which is over after twelve hours

// The page as it is now; where it is the login's, the session is over, and the browser goes there.
async function asked(method) {
  const answer = await fetch(location.href, { method });
  if (answer.redirected) location.reload();
  if (answer.redirected || answer.status === 429 || answer.status >= 500) throw new Error(`it is not told: ${answer.status}`);
  return answer;
}

class Stream {
  // After a broken connection browsers come back by themselves, after a refusal never: then the page is asked for, which says why.
  constructor(address, ask, events) {
    Object.assign(this, { address, ask, events, source: null, timer: 0, wait: LEAST_MS, last: "", ended: false });
  }
  open() {
    if (this.source || this.timer || this.ended || document.hidden) return;
    const source = new EventSource(this.last ? `${this.address}?cursor=${encodeURIComponent(this.last)}` : this.address);
    this.source = source;
    this.timer = setTimeout(() => { this.close(); this.open(); }, REOPENED_MS);
    for (const [name, hear] of Object.entries(this.events)) {
      source.addEventListener(name, (event) => { this.last = event.lastEventId || this.last; hear(event); });
    }
    source.addEventListener("open", () => { this.wait = LEAST_MS; });
    source.addEventListener("over", () => this.refused());
    source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) this.refused(); });
  }
  close() {
    this.source?.close();
    this.source = null;
    clearTimeout(this.timer);
    this.timer = 0;
  }
  end() { this.ended = true; this.close(); }
  refused() {
    this.close();
    const timer = setTimeout(async () => {
      const isAnswered = await this.ask();
      if (this.timer !== timer) return; // it was closed meanwhile, or opened again
      this.timer = 0;
      if (isAnswered) { this.open(); } else { this.refused(); }
    }, this.wait * (1 + Math.random()));
    this.timer = timer;
    this.wait = Math.min(2 * this.wait, MOST_MS);
  }
}

// ---- live: one stream says that something has happened, then the part #live is asked for anew; of Now it brings the part itself ----

const live = {
  stream: null, paused: sessionStorage.getItem("paused") === "1", asking: false, due: false, first: true, last: 0, timer: 0,

  say(text, kind) {
    const place = document.querySelector("[data-pulse]");
    if (place && place.textContent !== text) { place.textContent = text; place.className = `pulse ${kind}`; }
  },
  begin() {
    const address = document.getElementById("live")?.dataset.live;
    if (!address) return;
    this.stream = new Stream(address, () => this.refresh(), {
      open: () => this.say("live", "is-live"),
      error: () => this.say("connecting", "is-away"),
      over: () => this.say("connecting", "is-away"),
      overview: () => { if (!this.first) this.changed(); this.first = false; },
      part: (event) => this.put({ text: JSON.parse(event.data), swap: "innerMorph" }),
    });
    this.start();
  },
  start() {
    if (!this.stream || this.paused) return;
    this.first = true; // what the page shows already
    this.stream.open();
  },
  stop() {
    this.stream?.close();
    clearTimeout(this.timer);
    this.timer = 0;
  },
  async put(what) {
    const part = document.getElementById("live");
    await htmx.swap({ sourceElement: part, target: part, ...what });
  },
  changed() {
    if (this.paused || document.hidden || this.asking || this.timer || chosen()) { this.due = true; return; }
    const every = Number(document.getElementById("live").dataset.every || LEAST_MS);
    const rest = Math.max(0, this.last + every - performance.now());
    this.timer = setTimeout(() => { this.timer = 0; this.refresh(); }, rest);
  },
  // Whether the page could be asked for.
  async refresh() {
    if (!this.stream || this.paused || this.asking) return true;
    this.asking = true;
    this.due = false;
    const began = performance.now();
    const isAnswered = await this.bring().then(() => true, () => false);
    if (!isAnswered) this.say("connecting", "is-away");
    else if (this.stream.source?.readyState === EventSource.OPEN && !this.paused) this.say("live", "is-live");
    // a server that is slow is asked less often
    this.last = performance.now() + 4 * (performance.now() - began);
    this.asking = false;
    if (this.due) this.changed();
    return isAnswered;
  },
  async bring() {
    const text = await (await asked("GET")).text();
    if (!this.paused) await this.put({ text, select: "#live", swap: "outerMorph" });
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
live.show();
live.begin();

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
  place.textContent = count ? `${count} selected; the list is not refreshed:` : "Selected tasks:";
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
let lineStream = null;
if (lines) {
  const known = new Set([...lines.children].map((item) => item.dataset.place));
  const come = (event) => {
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
  };
  const isAnswered = () => asked("HEAD").then(() => true, () => false);
  lineStream = new Stream(lines.dataset.lines, isAnswered, { line: come, end: () => lineStream.end() });
  lineStream.open();
}

// ---- a page that nobody sees needs no connection; one that was paused stays as it is when it is seen again ----

const rest = () => { live.stop(); lineStream?.close(); };
const wake = () => { lineStream?.open(); live.start(); live.refresh(); };
document.addEventListener("visibilitychange", () => { if (document.hidden) { rest(); } else { wake(); } });
addEventListener("pagehide", rest);
addEventListener("pageshow", (event) => { if (event.persisted) wake(); });
