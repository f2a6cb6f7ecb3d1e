// The page of a folder: opens the steps, polls the state, and handles the keys that work everywhere.

import { fetchJson } from "./api.js";
import * as audit from "./audit.js";
import * as check from "./check.js";
import { copyFrom, count, find, notify, showView } from "./dom.js";
import { makeDesk, setClasses, showEnough } from "./folder-desk.js";
import * as label from "./label.js";
import * as results from "./results.js";
import * as start from "./start.js";
import * as train from "./train.js";

const views = { start, label: { ...label, open: openDesk }, check, train, results, audit };
const pollFast = 1000; // milliseconds between two status requests while something is going on
const pollSlow = 4000;
const run = { classes: [], status: null, command: "" };
let timer;
let openName;

function openView() {
  openName = showView(views, "start");
  if (run.status) views[openName].open?.(run);
}

function openDesk() {
  label.useDesk(desk);
  label.open();
}

const isOpen = (name) => name === openName || views[openName]?.section === name;

// Asks for the state at once, and then again and again.
async function refresh() {
  clearTimeout(timer);
  let wait = pollSlow;
  try {
    if (!run.folder) Object.assign(run, await fetchJson("/api/folder"));
    const isFirst = run.status === null;
    const before = run.classes;
    run.status = await fetchJson("/api/status");
    const isStale = run.classes !== before; // a class was made in the meantime
    if (!isStale && setClasses(run, run.status.classes) && before.length) label.reload();
    showStatus(run.status);
    for (const [name, view] of Object.entries(views)) if (run.status.counts) view.update?.(run, isOpen(name));
    if (run.status.counts) showEnough(run);
    if (isFirst) openView();
    if (isBusy(run.status)) wait = pollFast;
  } catch (error) {
    notify(error.message, true);
  }
  timer = setTimeout(refresh, document.hidden ? pollSlow : wait);
}

const isBusy = ({ progress, training, forecast, counts, quick_look: fitted }) =>
  progress.stage !== "ready" || forecast.state === "running" || training.state === "running" || training.state === "elsewhere" ||
  (Object.keys(counts?.of_class ?? {}).length > 1 && fitted !== counts.labelled); // new guesses are on their way

function showStatus({ problem, progress }) {
  find("#run-name").textContent = run.name;
  document.title = `${run.name} · npmatch`;
  run.command = run.status.suggest;
  const doing = { checking: "Checking the pictures", features: "Looking at the pictures with a pretrained network" }[progress.stage];
  const message = problem || (doing ? `${doing}: ${count(progress.done)} of ${count(progress.total)}. You can begin to label.` : "");
  const notice = find("#notice");
  notice.hidden = !message;
  notice.classList.toggle("problem", Boolean(problem));
  const line = find("p", notice);
  if (line.textContent !== message) line.textContent = message;
  const bar = find("progress", notice);
  bar.hidden = Boolean(problem) || !doing;
  bar.value = progress.total ? progress.done / progress.total : 0;
}

function onKey(event) {
  const isField = event.target.matches("input:not([type=file]), select, textarea");
  if (find("#keys").open) return;
  if (event.altKey && /^Digit[1-5]$/.test(event.code)) {
    location.hash = Object.keys(views)[Number(event.code.at(-1)) - 1];
    event.preventDefault();
  } else if (isField) {
    return;
  } else if (event.key === "?") {
    find("#keys").showModal();
    event.preventDefault();
  } else {
    views[openName].onKey?.(event);
  }
}

// The server has stored the token of the URL in a cookie; it should not stay visible in the address bar.
if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname + location.hash);
window.addEventListener("hashchange", openView);
document.addEventListener("keydown", onKey);
find("#show-keys").addEventListener("click", () => find("#keys").showModal());
for (const button of document.querySelectorAll("button.copy")) copyFrom(button, find(button.dataset.from));
const desk = makeDesk(run, refresh);
label.listen(run, desk);
for (const view of [start, check, train, results, audit]) view.listen(run, refresh);
openView();
refresh();
