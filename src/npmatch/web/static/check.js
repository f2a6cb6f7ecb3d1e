// Checking guesses: those of one class on one screen. Click the wrong ones, accept the rest.

import { fetchJson, post, userId } from "./api.js";
import { count, find, isolated, make, notify, percent, picture } from "./dom.js";

const perPage = 24;
const wrong = new Set(); // pictures on the page that are marked as wrong
const passed = new Set(); // pictures found wrong before: they are not shown again
let images = [];
let run;
let refresh;
let shown = ""; // class and model of the guesses on the page

export function listen(sharedRun, sharedRefresh) {
  run = sharedRun;
  refresh = sharedRefresh;
  find("#check-class").addEventListener("change", load);
  find("#accept").addEventListener("click", accept);
  find("#check-undo").addEventListener("click", undo);
}

export function open() {
  showChoices();
  load();
}

export function update(_, isOpen) {
  if (!isOpen) return;
  showChoices();
  if (!images.length && shown !== version()) load();
}

export function onKey(event) {
  if (event.ctrlKey && event.key.toLowerCase() === "z") undo();
  else if (event.ctrlKey || event.metaKey || event.altKey) return;
  else if (event.key === "Backspace") undo();
  else if (event.key === "Enter") accept(); // also on a picture, where the space key marks it
  else if (event.key.startsWith("Arrow")) move(event.key);
  else return;
  event.preventDefault();
}

const version = () => `${find("#check-class").value}-${run.status.guesses?.source}-${run.status.counts.labelled}`;

function showChoices() {
  const choice = find("#check-class");
  const classes = run.status.guesses?.classes ?? [];
  if (JSON.stringify([...choice.options].map(({ value }) => value)) === JSON.stringify(classes)) return;
  const before = choice.value;
  choice.replaceChildren(...classes.map((name) => make("option", { value: name, text: name })));
  if (classes.includes(before)) choice.value = before;
}

async function load() {
  const name = find("#check-class").value;
  shown = version();
  wrong.clear();
  images = [];
  try {
    if (name) {
      const query = new URLSearchParams({ predicted: name, surest: true, count: perPage + passed.size });
      images = (await fetchJson(`/api/images?${query}`)).images.filter(({ image }) => !passed.has(image)).slice(0, perPage);
    }
  } catch (error) {
    notify(error.message, true);
  }
  show(name);
}

function show(name) {
  find("#check-grid").replaceChildren(...images.map(({ image, name: file, confidence }) => {
    const tile = make("button", { type: "button", "aria-pressed": "false", "aria-label": `${file}: wrong`, title: file },
      picture(image), make("span", { text: percent(confidence, 0) }));
    tile.addEventListener("click", () => toggle(tile, image));
    return make("li", {}, tile);
  }));
  find("#check-nothing").hidden = images.length > 0;
  find("#check-nothing").textContent = name ? `No picture without a label is taken for ${name}.` : "There are no guesses yet: label pictures of two classes or more.";
  showWords();
}

function toggle(tile, image) {
  if (!wrong.delete(image)) wrong.add(image);
  tile.setAttribute("aria-pressed", String(wrong.has(image)));
  showWords();
}

function showWords() {
  const rest = images.length - wrong.size;
  find("#accept").disabled = images.length === 0;
  find("#accept").textContent = rest ? `Accept ${count(rest)} as ${isolated(find("#check-class").value)}` : "Go on";
  find("#check-words").textContent = wrong.size ? `${count(wrong.size)} wrong: they stay without a label.` : "";
}

async function accept() {
  if (!images.length) return;
  const label = find("#check-class").value;
  const right = images.map(({ image }) => image).filter((image) => !wrong.has(image));
  try {
    if (right.length) {
      const { accepted } = await post("/api/accept", { images: right, label, who: userId });
      notify(`${count(accepted)} labelled ${isolated(label)}`);
    }
    wrong.forEach((image) => passed.add(image));
    await refresh();
    await load();
    find("#check-grid button")?.focus();
  } catch (error) {
    notify(error.message, true);
  }
}

async function undo() {
  try {
    const { changed } = await post("/api/undo", { who: userId });
    notify(changed.length ? "Undone." : "There is nothing to undo.");
    await refresh();
    await load();
  } catch (error) {
    notify(error.message, true);
  }
}

function move(key) {
  const tiles = [...document.querySelectorAll("#check-grid button")];
  const here = tiles.indexOf(document.activeElement);
  const columns = Math.max(1, tiles.filter((tile) => tile.offsetTop === tiles[0].offsetTop).length);
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
  tiles[here < 0 ? 0 : here + step]?.focus();
}
