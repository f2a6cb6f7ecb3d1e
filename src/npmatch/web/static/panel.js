// The panel beside the grid: the selected image, and the classes to choose from.

import { find, make, percent, picture } from "./dom.js";
import { sureClass } from "./try.js";

const allKeys = [..."1234567890abcdefghijklmnopqrstuvwxyz"];
const minToSearch = 11; // number of classes from which the search field is shown
const maxShown = 40; // buttons at a time; other classes are found by typing

let classes = [];
let keys = []; // one for each class while keys last
let actions;

export function listen(givenActions) {
  actions = givenActions;
  find("#agree").addEventListener("click", () => actions.agree());
  find("#skip").addEventListener("click", () => actions.skip());
  find("#undo").addEventListener("click", () => actions.undo());
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
  find("#pick").hidden = classes.length < minToSearch;
  showMatches();
}

// A class whose name is a single key gets that key (class 7 is labelled with 7); the others get the remaining keys in order.
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
  actions.label(label);
}

function leave() {
  find("#pick").value = "";
  showMatches();
  actions.leave();
}

// Classes whose names begin with the typed text, then those that contain it.
function matches() {
  const typed = find("#pick").value.trim().toLowerCase();
  const all = classes.map((_, k) => k);
  const has = (k) => classes[k].toLowerCase().indexOf(typed);
  return all.filter((k) => has(k) >= 0).sort((a, b) => Math.min(has(a), 1) - Math.min(has(b), 1) || a - b);
}

function showMatches() {
  const labels = matches();
  const buttons = labels.slice(0, maxShown).map((k) =>
    make("button", { type: "button", "data-label": k, title: classes[k], on: { click: () => choose(k) } },
      keys[k] ? make("kbd", { text: keys[k] }) : "",
      make("span", { text: classes[k] })));
  const more = labels.length - buttons.length;
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
  } catch { // browsers allow the clipboard on localhost and https only
    getSelection().selectAllChildren(code);
  }
}
