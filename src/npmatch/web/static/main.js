// The page: opens the views, polls the run's status, and handles the keys that work everywhere.

import { fetchJson } from "./api.js";
import { count, find, notify, showView } from "./dom.js";
import * as figures from "./figures.js";
import * as label from "./label.js";
import * as trial from "./try.js";

const views = { try: trial, label, figures };
const pollFast = 2000; // milliseconds between two status requests while the run or its images are being processed
const pollSlow = 15000;
const run = { classes: [], status: null };

function openView() {
  const open = showView(views, "try");
  views[open].open?.(run);
}

const isOpen = (name) => !find(`#view-${name}`).hidden;

async function poll() {
  let wait = pollSlow;
  try {
    const status = await fetchJson("/api/status");
    const modelIsNew = status.has_model && !run.status?.has_model;
    const isFirst = !run.status;
    run.status = status;
    if (modelIsNew || !run.folder) Object.assign(run, await fetchJson("/api/run"));
    showStatus(status);
    if (isFirst && !status.has_model && !location.hash) location.replace("#figures"); // the only view with content before there is a model
    for (const [name, view] of Object.entries(views)) view.update?.(run, isOpen(name));
    if (isBusy(status)) wait = pollFast;
  } catch (error) {
    notify(error.message, true);
  }
  setTimeout(poll, document.hidden ? pollSlow : wait);
}

const isBusy = ({ has_model, problem, counts }) =>
  !problem && (!has_model || !counts || counts.looked_at < counts.images);

function showStatus({ has_model, stage, problem, step }) {
  find("#run-name").textContent = run.run || "";
  document.title = run.run ? `${run.run} · npmatch` : "npmatch";
  const notice = find("#notice");
  const message = problem || stageMessage(stage, step);
  notice.hidden = !message;
  notice.classList.toggle("problem", Boolean(problem));
  const line = find("p", notice);
  if (line.textContent !== message) line.textContent = message;
  const bar = find("progress", notice);
  bar.hidden = Boolean(problem) || has_model || !run.iterations;
  if (run.iterations) bar.value = step / run.iterations;
}

function stageMessage(stage, step) {
  const where = `step ${count(step)}${run.iterations ? ` of ${count(run.iterations)}` : ""}`;
  if (stage === "ready") return "";
  if (stage === "opening") return "Loading the model…";
  if (stage === "training") {
    return `Training: ${where}. You can follow the curves now, and try and label images once training has finished.`;
  }
  return `Training stopped at ${where}, before there was a model. Run the same command with --resume to continue.`;
}

function onKey(event) {
  const isField = event.target.matches("input:not([type=file]), select, textarea");
  if (find("#keys").open || isField) return;
  const tab = event.altKey && /^Digit[123]$/.test(event.code);
  if (tab) {
    location.hash = Object.keys(views)[Number(event.code.at(-1)) - 1];
    event.preventDefault();
  } else if (event.key === "?") {
    find("#keys").showModal();
    event.preventDefault();
  } else if (isOpen("label")) {
    label.onKey(event);
  }
}

// The server has stored the token of the URL in a cookie; it should not stay visible in the address bar.
if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname + location.hash);
window.addEventListener("hashchange", openView);
document.addEventListener("keydown", onKey);
find("#show-keys").addEventListener("click", () => find("#keys").showModal());
trial.listen(run, () => { location.hash = "try"; });
label.listen(run);
openView();
poll();
