// Beside the grid: the image in focus, and the classes to choose from.

import { find, make, percent, picture } from "./dom.js";
import { sureClass } from "./try.js";

const allKeys = [..."1234567890abcdefghijklmnopqrstuvwxyz"];
const findFrom = 11; // classes from which on typing a name is offered
const mostShown = 40; // classes at a time; the rest is found by typing

let classes = [];
let keys = []; // one for each class, as far as there are
let acts;

export function listen(theActs) {
  acts = theActs;
  find("#agree").addEventListener("click", () => acts.agree());
  find("#skip").addEventListener("click", () => acts.skip());
  find("#undo").addEventListener("click", () => acts.undo());
  find("#copy").addEventListener("click", copy);
  const field = find("#pick");
  field.addEventListener("input", showMatches);
  field.addEventListener("keydown", (event) => {
    const [best] = matches();
    if (event.key === "Enter" && field.value.trim() && best !== undefined) choose(best);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
  });
}

export function showClasses(names) {
  if (names === classes) return;
  classes = names;
  keys = keysFor(names);
  find("#pick").hidden = classes.length < findFrom;
  showMatches();
}

// A class whose name is a key gets that key (the digit 7 is labelled with a 7); the others get the rest in order.
export function keysFor(names) {
  const own = new Set(names.map((name) => name.toLowerCase()).filter((name) => allKeys.includes(name)));
  const rest = allKeys.filter((key) => !own.has(key));
  return names.map((name) => (own.delete(name.toLowerCase()) ? name.toLowerCase() : rest.shift()));
}

export const classOf = (key) => keys.indexOf(key.toLowerCase());

export function pick() {
  const field = find("#pick");
  if (field.hidden) find("#classes button")?.focus();
  else field.focus();
}

function choose(label) {
  leave();
  acts.label(label);
}

function leave() {
  find("#pick").value = "";
  showMatches();
  acts.leave();
}

// Names that begin with what was typed, then those that contain it.
function matches() {
  const typed = find("#pick").value.trim().toLowerCase();
  const all = classes.map((_, k) => k);
  const has = (k) => classes[k].toLowerCase().indexOf(typed);
  return all.filter((k) => has(k) >= 0).sort((a, b) => Math.min(has(a), 1) - Math.min(has(b), 1) || a - b);
}

function showMatches() {
  const found = matches();
  const buttons = found.slice(0, mostShown).map((k) =>
    make("button", { type: "button", "data-label": k, title: classes[k], on: { click: () => choose(k) } },
      keys[k] ? make("kbd", { text: keys[k] }) : "",
      make("span", { text: classes[k] })));
  const more = found.length - buttons.length;
  if (more > 0) buttons.push(make("span", { class: "small muted", text: `and ${more} more: type to find them` }));
  find("#classes").replaceChildren(...buttons);
}

export function showImage(image) {
  const frame = find(".focus-image");
  const shown = find("img", frame);
  if (shown.dataset.position !== String(image.image)) {
    const next = picture(image.image);
    next.id = "focus-picture";
    next.dataset.position = image.image;
    next.loading = "eager";
    shown.replaceWith(next);
  }
  find("#focus-guess").replaceChildren(
    make("b", { text: classes[image.guess] }),
    make("span", { text: ` ${percent(image.confidence)} ` }),
    make("span", { class: `pill sure-${sureClass(image.share)}`, text: image.sureness }));
  find("#focus-name").textContent = image.name;
  for (const button of find("#classes").querySelectorAll("button")) {
    const label = Number(button.dataset.label);
    button.classList.toggle("guessed", label === image.guess);
    button.setAttribute("aria-pressed", String(label === image.given));
  }
}

async function copy() {
  const code = find("#command");
  try {
    await navigator.clipboard.writeText(code.textContent);
    find("#copy").textContent = "Copied";
    setTimeout(() => { find("#copy").textContent = "Copy"; }, 2000);
  } catch { // only pages of this machine, or with https, may use the clipboard
    getSelection().selectAllChildren(code);
  }
}
