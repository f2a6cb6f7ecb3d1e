// Labelling: a grid of images, one of them selected; a key or a button gives it a label.

import { fetchJson, post, userId } from "./api.js";
import { count, find, isolated, make, notify, percent, picture } from "./dom.js";
import * as panel from "./panel.js";
import { sureClass } from "./try.js";

const perPage = 24;

// How the desk of a run talks to its server; that of a folder is in folder-desk.js, that of an audit in audit.js.
const runDesk = {
  title: "",
  paths: { labels: "/api/labels", undo: "/api/undo" },
  undoRequest: () => ({ who: userId }),
  choices: () => run.classes,
  counts: () => run.status?.counts,
  keep: (counts) => { run.status.counts = counts; },
  load: (filters, start) => fetchJson(`/api/images?${new URLSearchParams({ ...filters, start, count: perPage })}`),
  request: (image, change) => ({ image: image.image, seen: image.given, who: userId, ...change }),
  taken: (answer) => answer,
  fixedKeys: [],
  version: (counts) => counts.looked_at,
  predictable: () => run.classes.map((name, k) => [k, name]),
  order: ({ images, looked_at: seen }) => (seen < images ? `${count(seen)} of ${count(images)} predicted` : "most uncertain first"),
  whenEmpty: ({ images, looked_at: seen }) => {
    if (images === 0) return "This run has no unlabelled images.";
    if (seen < images) return "The model is predicting the images…";
    return find("#view-choice").value === "todo" ? "Nothing is left to label here." : "There are no images in this view.";
  },
};
let desk = runDesk;
const actions = { label: (k) => mark({ label: k }), agree, skip: () => mark({ skip: true }), undo, leave: focusTile };
const state = { images: [], focus: 0, start: 0, previous: null, next: null, ranked: -1, touched: false, loading: false };
let run;

export function listen(sharedRun, ownDesk = {}) {
  run = sharedRun;
  useDesk(ownDesk);
  window.addEventListener("beforeunload", (event) => { if (unsent > 1) event.preventDefault(); });
  panel.listen(actions);
  find("#previous").addEventListener("click", () => turn(state.previous));
  find("#next").addEventListener("click", () => turn(state.next));
  for (const id of ["#view-choice", "#predicted"]) find(id).addEventListener("change", () => load(0, false));
}

let ownOfDesk; // what the desk was made of

// Lets the view show the images of a desk.
export function useDesk(own) {
  if (own === ownOfDesk) return;
  ownOfDesk = own;
  desk = { ...runDesk, ...own };
  actions.create = desk.create && ((name) => createClass(name));
  Object.assign(state, { images: [], focus: 0, start: 0, ranked: -1, touched: false });
  find("#grid").replaceChildren();
  if (desk.title) find("#label-title").textContent = desk.title;
  find("#view-label").classList.toggle("auditing", Boolean(desk.isAudit));
}

export function open() {
  if (!desk.counts()) return;
  update(run, false);
  if (state.ranked < 0) load(0);
}

export function update(_, isOpen) {
  const counts = desk.counts();
  for (const part of [".filters", ".bench"]) find(`#view-label ${part}`).hidden = !counts;
  find("#view-label .waiting").hidden = Boolean(counts);
  if (!counts) return;
  showCounts(counts);
  panel.showClasses(desk.choices(), desk.fixedKeys);
  showPredictedChoices();
  find("#command").textContent = run.command;
  const hasNewRanks = desk.version(counts) !== state.ranked;
  if (isOpen && hasNewRanks && !state.touched) load(0, document.activeElement === document.body); // more images are ranked, and the user has not started yet
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
const gridKeys = { Enter: () => agree(), " ": () => mark({ skip: true }) }; // elsewhere they press the focused button

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
  const asked = desk;
  try {
    await pending; // labels of this page decide what is on the next
    const page = await asked.load(filters, start, perPage);
    if (asked !== desk) return;
    const counts = desk.counts();
    Object.assign(state, page, { start, focus: 0, touched: start > 0, ranked: counts ? desk.version(counts) : -1 });
    showPage(takeFocus);
  } catch (error) {
    notify(error.message, true);
  } finally {
    state.loading = false;
    if (asked !== desk) load(0); // another view was opened in the meantime
  }
  const now = chosenFilters();
  if (now.view !== filters.view || now.predicted !== filters.predicted) load(0, false); // changed while the page was loading
}

function chosenFilters() {
  const predicted = find("#predicted").value;
  return { view: find("#view-choice").value, ...(predicted && { predicted }) };
}

function turn(start) {
  if (start !== null) load(start);
  else notify("There are no more pages.");
}

function showPage(takeFocus) {
  find("#grid").replaceChildren(...state.images.map(newTile));
  find("#previous").disabled = state.previous === null;
  find("#next").disabled = state.next === null;
  find("#matching").textContent = `${count(state.matching)} ${state.matching === 1 ? "image" : "images"}`;
  const isEmpty = state.images.length === 0;
  find("#nothing").hidden = !isEmpty;
  find("#nothing").textContent = desk.whenEmpty(desk.counts() ?? {});
  find("#panel").classList.toggle("idle", isEmpty);
  if (!isEmpty) showFocus();
  if (takeFocus && !isEmpty) focusTile();
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
  const choices = desk.choices();
  const guess = image.guess === null ? "" : choices[image.guess];
  const given = image.given === null ? (image.skipped ? "skipped" : "") : choices[image.given];
  find(".guess-name", tile).textContent = guess;
  find(".guess-share", tile).textContent = guess && percent(image.confidence, 0);
  find(".tile-given", tile).textContent = given;
  tile.className = guess ? `sure-${sureClass(image.share)}` : "no-guess";
  tile.classList.toggle("given", image.given !== null);
  tile.classList.toggle("skipped", image.given === null && image.skipped);
  tile.setAttribute("aria-label",
    `${image.name}; ${guess && `predicted ${guess}, ${percent(image.confidence, 0)}, ${image.sureness}; `}` +
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
  panel.showImage(state.images[state.focus]);
}

// Shows the change at once and sends it in the background, so that fast typing never waits for the server.
function mark(change, goOn = true) {
  const image = state.images[state.focus];
  if (!image || state.loading) return;
  state.touched = true;
  const isSkip = Boolean(change.skip);
  show({ ...image, given: isSkip ? image.given : change.label, skipped: isSkip });
  const own = desk;
  const request = own.request(image, change); // now: the classes may have other numbers when it is sent
  inOrder(async () => {
    try {
      const { changed, counts, taken } = own.taken(await post(own.paths.labels, request));
      take(own, changed, counts);
      unsaved.delete(image.image);
      showUnsaved();
      if (!taken) notify(`Somebody else has labelled ${isolated(image.name)} in the meantime; their label is kept.`, true);
    } catch (error) {
      if (own === desk) show(image);
      unsaved.add(image.image);
      showUnsaved(error.message);
    }
  });
  notify(isSkip ? `Skipped: ${isolated(image.name)}` : change.label === null ? `Label removed: ${isolated(image.name)}`
    : `${isolated(own.choices()[change.label])}: ${isolated(image.name)}`);
  if (goOn) goToNext(image.image);
}

const unsaved = new Set(); // images whose last change could not be saved

// Unlike a short message, this line stays until every such image has been labelled again.
function showUnsaved(reason) {
  const line = find("#unsaved");
  line.hidden = unsaved.size === 0;
  const what = unsaved.size === 1 ? "1 change is" : `${count(unsaved.size)} changes are`;
  if (reason) line.dataset.reason = reason;
  find("p", line).textContent = `${what} not saved: ${line.dataset.reason}. The images are as they were before; label them again.`;
}

let pending = Promise.resolve(); // requests are sent one after another
let unsent = 0;

function inOrder(request) {
  unsent += 1;
  pending = pending.then(request).finally(() => { unsent -= 1; });
}

function agree() {
  const image = state.images[state.focus];
  if (image?.guess === null) notify("There is no guess yet: choose a class.");
  else if (image) mark({ label: image.guess });
}

function undo() {
  if (state.loading) return;
  const own = desk;
  inOrder(async () => {
    try {
      const { changed, counts } = own.taken(await post(own.paths.undo, own.undoRequest()));
      if (!changed.length) {
        notify("There is nothing to undo.");
        return;
      }
      take(own, changed, counts);
      notify(`Undone: ${isolated(changed[0].name)}`);
      if (own !== desk) return;
      const index = state.images.findIndex(({ image }) => image === changed[0].image);
      if (index >= 0) focusOn(index);
      else load(state.start); // the image is on another page, or has come back to this one
    } catch (error) {
      notify(error.message, true);
    }
  });
}

function take(own, changed, counts) {
  own.keep(counts);
  if (own !== desk) return; // another view was opened in the meantime
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

const isOpen = ({ given, skipped }) => given === null && !skipped;

// Selects the next image without a label; after the last one, loads the next page.
async function goToNext(done) {
  const here = state.images.findIndex(({ image }) => image === done);
  const after = state.images.findIndex((image, index) => index > here && isOpen(image));
  const next = after >= 0 ? after : state.images.findIndex(isOpen);
  if (next >= 0) {
    focusOn(next);
    return;
  }
  state.loading = true; // keys are for the next page
  await pending;
  state.loading = false;
  const again = state.images.findIndex(isOpen); // its label could not be saved
  if (again >= 0) focusOn(again);
  else if (state.next !== null) load(state.next);
  else if (find("#view-choice").value === "todo") load(0);
}

function showCounts(counts) {
  const { images, looked_at: seen = images, labelled, aside, skipped, todo, unreadable } = counts;
  const parts = [`${count(labelled)} labelled`, aside && `${count(aside)} set aside`, skipped && `${count(skipped)} skipped`, `${count(todo)} to label`];
  if (unreadable) parts.push(`${count(unreadable)} unreadable`);
  find("#progress-line").textContent = `${parts.filter(Boolean).join(" · ")} · ${desk.order(counts)}`;
  const bar = find("#looking");
  bar.hidden = seen >= images;
  bar.value = images ? seen / images : 0;
}

function showPredictedChoices() {
  const choice = find("#predicted");
  const choices = desk.predictable();
  const shown = choices.map(([, name]) => name).join("\n");
  if (choice.dataset.shown === shown) return;
  choice.dataset.shown = shown;
  const [any] = choice.options;
  choice.replaceChildren(any, ...choices.map(([value, name]) => make("option", { value, text: name })));
}

// Makes a class and gives it to the selected image.
async function createClass(name) {
  state.loading = true; // the next keys are for the next image
  const label = await desk.create(name).catch((error) => notify(error.message, true));
  state.loading = false;
  panel.showClasses(desk.choices(), desk.fixedKeys);
  if (label !== undefined) mark({ label });
}

// Shows the images again, as they are now: classes have got other names.
export async function reload() {
  if (state.ranked < 0) return;
  const selected = state.images[state.focus]?.image;
  await load(state.start, false);
  const index = state.images.findIndex(({ image }) => image === selected);
  if (index < 0) return;
  state.focus = index;
  showFocus();
  if (document.activeElement === document.body) focusTile();
}
