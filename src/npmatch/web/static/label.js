// Labelling: a page of images, one of them in focus; a key or a button says what it is.

import { ask, me, post } from "./api.js";
import { count, find, isolated, make, percent, picture, say } from "./dom.js";
import * as panel from "./panel.js";
import { sureClass } from "./try.js";

const perPage = 24;
const state = { images: [], focus: 0, start: 0, previous: null, next: null, ranked: -1, touched: false, loading: false };
let run;

export function listen(theRun) {
  run = theRun;
  window.addEventListener("beforeunload", (event) => { if (unsent > 1) event.preventDefault(); });
  panel.listen({ label: (k) => mark({ label: k }), agree, skip: () => mark({ skip: true }), undo, leave: focusTile });
  find("#previous").addEventListener("click", () => turn(state.previous));
  find("#next").addEventListener("click", () => turn(state.next));
  for (const id of ["#view-choice", "#predicted"]) find(id).addEventListener("change", () => load(0, false));
}

export function open() {
  if (run.status?.counts && state.ranked < 0) load(0);
}

export function update(_, isOpen) {
  const { counts } = run.status;
  for (const part of [".filters", ".bench"]) find(`#view-label ${part}`).hidden = !counts;
  find("#view-label .waiting").hidden = Boolean(counts);
  if (!counts) return;
  showCounts(counts);
  panel.showClasses(run.classes);
  showPredictedChoices();
  find("#command").textContent = run.command;
  const isNews = counts.looked_at !== state.ranked;
  if (isOpen && isNews && !state.touched) load(0, document.activeElement === document.body); // the order is not final yet and nobody has begun
}

const keys = {
  ArrowLeft: () => move(-1),
  ArrowRight: () => move(1),
  ArrowUp: () => move(-columns()),
  ArrowDown: () => move(columns()),
  Home: () => focusOn(0),
  End: () => focusOn(state.images.length - 1),
  PageUp: () => turn(state.previous),
  PageDown: () => turn(state.next),
  "[": () => turn(state.previous),
  "]": () => turn(state.next),
  Backspace: () => undo(),
  Delete: () => mark({ label: null }, false),
  "/": () => panel.pick(),
};
const gridKeys = { Enter: () => agree(), " ": () => mark({ skip: true }) }; // elsewhere they press the button in focus

export function onKey(event) {
  if ((event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "z") {
    event.preventDefault();
    undo();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const isOnGrid = event.target === document.body || event.target.closest("#grid, #main:focus") !== null;
  const act = keys[event.key] ?? (isOnGrid ? gridKeys[event.key] : undefined);
  const chosen = panel.classOf(event.key);
  if (act) act();
  else if (chosen >= 0) mark({ label: chosen });
  else return;
  event.preventDefault();
}

async function load(start, takeFocus = true) {
  if (state.loading) return;
  state.loading = true;
  const filters = chosenFilters();
  try {
    await pending; // what was said of this page decides what is on the next
    const page = await ask(`/api/images?${new URLSearchParams({ ...filters, start, count: perPage })}`);
    Object.assign(state, page, { start, focus: 0, touched: start > 0, ranked: run.status.counts?.looked_at ?? -1 });
    showPage(takeFocus);
  } catch (error) {
    say(error.message, true);
  } finally {
    state.loading = false;
  }
  const now = chosenFilters();
  if (now.view !== filters.view || now.predicted !== filters.predicted) load(0, false); // chosen meanwhile
}

function chosenFilters() {
  const predicted = find("#predicted").value;
  return { view: find("#view-choice").value, ...(predicted && { predicted }) };
}

function turn(start) {
  if (start !== null) load(start);
  else say("There is no further page.");
}

function showPage(takeFocus) {
  find("#grid").replaceChildren(...state.images.map(newTile));
  find("#previous").disabled = state.previous === null;
  find("#next").disabled = state.next === null;
  find("#matching").textContent = `${count(state.matching)} ${state.matching === 1 ? "image" : "images"}`;
  const isEmpty = state.images.length === 0;
  find("#nothing").hidden = !isEmpty;
  find("#nothing").textContent = emptyWords();
  find("#panel").classList.toggle("idle", isEmpty);
  if (!isEmpty) showFocus();
  if (takeFocus && !isEmpty) focusTile();
}

function emptyWords() {
  const { images, looked_at: seen } = run.status.counts ?? {};
  if (images === 0) return "This run has no unlabelled images.";
  if (seen < images) return "The model is looking at the images…";
  return find("#view-choice").value === "todo" ? "Nothing is left to label here." : "No such image.";
}

function newTile(image, index) {
  const tile = make("li", { role: "option", id: `tile-${index}`, tabindex: -1, on: { click: () => focusOn(index) } },
    picture(image.image),
    make("span", { class: "tile-guess" }, make("span", { class: "guess-name" }), make("span", { class: "guess-share" })),
    make("span", { class: "tile-given" }));
  fill(tile, image);
  return tile;
}

function fill(tile, image) {
  const guess = run.classes[image.guess];
  const given = image.given === null ? (image.skipped ? "skipped" : "") : run.classes[image.given];
  find(".guess-name", tile).textContent = guess;
  find(".guess-share", tile).textContent = percent(image.confidence, 0);
  find(".tile-given", tile).textContent = given;
  tile.className = `sure-${sureClass(image.share)}`;
  tile.classList.toggle("given", image.given !== null);
  tile.classList.toggle("skipped", image.given === null && image.skipped);
  tile.setAttribute("aria-label",
    `${image.name}; the model says ${guess}, ${percent(image.confidence, 0)}, ${image.sureness}; ` +
    (image.given !== null ? `labelled ${given}` : given || "not labelled"));
}

const tiles = () => find("#grid").children;

function columns() {
  const [first, ...others] = tiles();
  const row = others.findIndex((tile) => tile.offsetTop > first.offsetTop);
  return row < 0 ? tiles().length : row + 1;
}

function move(by) {
  const to = state.focus + by;
  if (to >= 0 && to < state.images.length) focusOn(to);
}

function focusOn(index) {
  if (!state.images.length) return;
  state.focus = index;
  state.touched = true;
  showFocus();
  focusTile();
}

function focusTile() {
  tiles()[state.focus]?.focus();
}

function showFocus() {
  [...tiles()].forEach((tile, index) => {
    const isFocus = index === state.focus;
    tile.tabIndex = isFocus ? 0 : -1;
    tile.setAttribute("aria-selected", String(isFocus));
  });
  panel.showImage(state.images[state.focus], run.classes);
}

// The page does not wait for the server: a quick hand is on the next image before the answer to the last is here.
function mark(what, goOn = true) {
  const image = state.images[state.focus];
  if (!image || state.loading) return;
  state.touched = true;
  const isSkip = Boolean(what.skip);
  show({ ...image, given: isSkip ? image.given : what.label, skipped: isSkip });
  inOrder(async () => {
    try {
      const { changed, counts, taken } = await post("/api/labels", { image: image.image, seen: image.given, who: me, ...what });
      take(changed, counts);
      if (!taken) say(`Somebody else has labelled ${isolated(image.name)} meanwhile; that label stays.`, true);
    } catch (error) {
      show(image);
      say(error.message, true);
    }
  });
  say(isSkip ? `Skipped ${isolated(image.name)}` : what.label === null ? `No label any more: ${isolated(image.name)}`
    : `${isolated(run.classes[what.label])}: ${isolated(image.name)}`);
  if (goOn) goToNext(image.image);
}

let pending = Promise.resolve();
let unsent = 0;

function inOrder(act) {
  unsent += 1;
  pending = pending.then(act).finally(() => { unsent -= 1; });
}

function agree() {
  const image = state.images[state.focus];
  if (image) mark({ label: image.guess });
}

function undo() {
  if (state.loading) return;
  inOrder(async () => {
    try {
      const { changed, counts } = await post("/api/undo", { who: me });
      if (!changed.length) {
        say("There is nothing to undo.");
        return;
      }
      take(changed, counts);
      say(`Undone: ${isolated(changed[0].name)}`);
      const index = state.images.findIndex(({ image }) => image === changed[0].image);
      if (index >= 0) focusOn(index);
      else load(state.start); // it is on another page, or back on this one
    } catch (error) {
      say(error.message, true);
    }
  });
}

function take(changed, counts) {
  run.status.counts = counts;
  showCounts(counts);
  changed.forEach(show);
}

function show(image) {
  const index = state.images.findIndex((other) => other.image === image.image);
  if (index < 0) return;
  state.images[index] = image;
  fill(tiles()[index], image);
  if (index === state.focus) showFocus();
}

// The next image that still wants a label; from the last one on, the next page.
function goToNext(done) {
  const here = state.images.findIndex(({ image }) => image === done);
  const isOpen = ({ given, skipped }) => given === null && !skipped;
  const after = state.images.findIndex((image, index) => index > here && isOpen(image));
  const any = after >= 0 ? after : state.images.findIndex(isOpen);
  if (any >= 0) focusOn(any);
  else if (state.next !== null) load(state.next);
  else if (find("#view-choice").value === "todo") load(0);
}

function showCounts({ images, looked_at: seen, labelled, skipped, todo, unreadable }) {
  const parts = [`${count(labelled)} labelled`, skipped && `${count(skipped)} skipped`, `${count(todo)} to go`];
  if (unreadable) parts.push(`${count(unreadable)} unreadable`);
  const order = seen < images ? `the model has looked at ${count(seen)} of ${count(images)}` : "least sure first";
  find("#progress-line").textContent = `${parts.filter(Boolean).join(" · ")} · ${order}`;
  const bar = find("#looking");
  bar.hidden = seen >= images;
  bar.value = images ? seen / images : 0;
}

function showPredictedChoices() {
  const choice = find("#predicted");
  if (choice.options.length - 1 === run.classes.length) return;
  choice.append(...run.classes.map((name, k) => make("option", { value: k, text: name })));
}
