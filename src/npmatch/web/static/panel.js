// The panel beside the grid: the selected image, and the classes to choose from.

import { copyFrom, find, make, percent, picture } from "./dom.js";
import { sureClass } from "./try.js";

const allKeys = [..."1234567890abcdefghijklmnopqrstuvwxyz"];
const minToSearch = 11; // number of classes from which the search field is shown
const maxShown = 40; // buttons at a time; other classes are found by typing

let classes = [];
let keys = []; // one for each class while keys last
let numFixed = 0; // the first choices are no classes: they have keys of their own and come last
let actions; // with `create`, a class that does not exist yet can be typed

export function listen(givenActions) {
  actions = givenActions;
  find("#agree").addEventListener("click", () => actions.agree());
  find("#skip").addEventListener("click", () => actions.skip());
  find("#undo").addEventListener("click", () => actions.undo());
  if (find("#copy")) copyFrom(find("#copy"), find("#command"));
  const field = find("#pick");
  field.addEventListener("input", showMatches);
  field.addEventListener("keydown", (event) => {
    const [best] = matches();
    const typed = field.value.trim();
    if (event.key === "Enter" && typed && canCreate() && (event.ctrlKey || best === undefined)) create(typed);
    else if (event.key === "Enter" && typed && best !== undefined) choose(best);
    else if (event.key === "Escape") leave();
    else return;
    event.preventDefault();
  });
}

export function showClasses(names, fixedKeys = []) {
  if (names === classes) return;
  classes = names;
  numFixed = fixedKeys.length;
  keys = [...fixedKeys, ...keysFor(names.slice(numFixed))];
  find("#pick").hidden = !actions?.create && classes.length < minToSearch;
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

const canCreate = () => actions?.create !== undefined && !classes.includes(find("#pick").value.trim());

function create(name) {
  leave();
  actions.create(name);
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
  const isFixed = (k) => Number(k < numFixed);
  return all.filter((k) => has(k) >= 0)
    .sort((a, b) => isFixed(a) - isFixed(b) || Math.min(has(a), 1) - Math.min(has(b), 1) || a - b);
}

function showMatches() {
  const labels = matches();
  const buttons = labels.slice(0, maxShown).map((k) =>
    make("button", { type: "button", class: k < numFixed ? "aside" : "", "data-label": k, title: classes[k], on: { click: () => choose(k) } },
      keys[k] ? make("kbd", { text: keys[k] }) : "",
      make("span", { text: classes[k] })));
  const more = labels.length - buttons.length;
  if (more > 0) buttons.push(make("span", { class: "small muted", text: `and ${more} more: type to find them` }));
  const typed = find("#pick").value.trim();
  if (typed && canCreate()) {
    const key = labels.length ? [make("kbd", { text: "Ctrl ↵" })] : [make("kbd", { text: "↵" })];
    buttons.push(make("button", { type: "button", class: "new-class", on: { click: () => create(typed) } },
      ...key, make("span", { text: `New class “${typed}”` })));
  }
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
  find("#focus-guess").replaceChildren(...(image.guess === null ? [make("span", { class: "muted", text: "no guess yet" })] : [
    make("b", { text: classes[image.guess] }),
    make("span", { text: ` ${percent(image.confidence)} ` }),
    make("span", { class: `pill sure-${sureClass(image.share)}`, text: image.sureness })]));
  find("#focus-name").textContent = image.name;
  for (const button of find("#classes").querySelectorAll("button")) {
    const label = Number(button.dataset.label);
    button.classList.toggle("guessed", label === image.guess);
    button.setAttribute("aria-pressed", String(label === image.given));
  }
}
