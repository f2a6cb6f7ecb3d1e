// The page: which view is open, how the run stands, and what every view shares.

import { ask } from "./api.js";
import { count, find, say } from "./dom.js";
import * as figures from "./figures.js";
import * as label from "./label.js";
import * as trial from "./try.js";

const views = { try: trial, label, figures };
const often = 2000; // milliseconds between two looks at a run on which something is going on
const rarely = 15000;
const run = { classes: [], status: null };

function openView() {
  const name = location.hash.slice(1);
  const open = name in views ? name : "try";
  for (const key of Object.keys(views)) {
    find(`#view-${key}`).hidden = key !== open;
    const link = find(`nav a[href="#${key}"]`);
    if (key === open) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
  find("#say").classList.remove("shown");
  views[open].open?.(run);
}

const isOpen = (name) => !find(`#view-${name}`).hidden;

async function look() {
  let wait = rarely;
  try {
    const status = await ask("/api/status");
    const news = status.has_model && !run.status?.has_model;
    const isFirst = !run.status;
    run.status = status;
    if (news || !run.folder) Object.assign(run, await ask("/api/run"));
    tell(status);
    if (isFirst && !status.has_model && !location.hash) location.replace("#figures"); // all there is to see yet
    for (const [name, view] of Object.entries(views)) view.update?.(run, isOpen(name));
    if (isBusy(status)) wait = often;
  } catch (error) {
    say(error.message, true);
  }
  setTimeout(look, document.hidden ? rarely : wait);
}

const isBusy = ({ has_model, problem, counts }) =>
  !problem && (!has_model || !counts || counts.looked_at < counts.images);

function tell({ has_model, stage, problem, step }) {
  find("#run-name").textContent = run.run || "";
  document.title = run.run ? `${run.run} · npmatch` : "npmatch";
  const notice = find("#notice");
  const words = problem || waitingWords(stage, step);
  notice.hidden = !words;
  notice.classList.toggle("problem", Boolean(problem));
  const line = find("p", notice);
  if (line.textContent !== words) line.textContent = words;
  const bar = find("progress", notice);
  bar.hidden = Boolean(problem) || has_model || !run.iterations;
  if (run.iterations) bar.value = step / run.iterations;
}

function waitingWords(stage, step) {
  const where = `step ${count(step)}${run.iterations ? ` of ${count(run.iterations)}` : ""}`;
  if (stage === "ready") return "";
  if (stage === "opening") return "The model is being opened…";
  if (stage === "training") {
    return `No model yet: ${where}. The curves are live; images can be tried and labelled once training has finished.`;
  }
  return `Training stopped at ${where}, and there is no model yet. The command that started it goes on with --resume.`;
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

// A token in the address has become a cookie by now; it should not stay where others can read it.
if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname + location.hash);
window.addEventListener("hashchange", openView);
document.addEventListener("keydown", onKey);
find("#show-keys").addEventListener("click", () => find("#keys").showModal());
trial.listen(run, () => { location.hash = "try"; });
label.listen(run);
openView();
look();
