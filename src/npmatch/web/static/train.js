// Training: a button with minutes, the progress of the process behind it, and the rounds so far.

import { post } from "./api.js";
import { count, duration, find, make, notify, percent } from "./dom.js";
import { drawNew } from "./figures.js";

let run;
let refresh;

export function listen(sharedRun, sharedRefresh) {
  run = sharedRun;
  refresh = sharedRefresh;
  find("#train-form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask("/api/training", { minutes: Number(find("#minutes").value) });
  });
  find("#stop").addEventListener("click", () => ask("/api/training/stop", {}));
  find("#resume").addEventListener("click", () => ask("/api/training/resume", { round: run.status.training.round }));
  find("#minutes").addEventListener("change", showCommand);
}

export const open = () => update(run, true);

async function ask(path, request) {
  for (const button of ["#train", "#stop", "#resume"]) find(button).disabled = true;
  try {
    await post(path, request);
  } catch (error) {
    notify(error.message, true);
  } finally {
    for (const button of ["#train", "#stop", "#resume"]) find(button).disabled = false;
    await refresh();
  }
}

export function update(_, isOpen) {
  const { counts, training, forecast, rounds, figures } = run.status;
  const choice = find("#minutes");
  if (!choice.options.length) choice.append(...run.minutes.map((minutes) => make("option", { value: minutes, text: minutes })));
  const classes = Object.keys(counts.of_class).length;
  find("#train-lead").textContent = `${count(counts.labelled)} labels of ${classes} ${classes === 1 ? "class" : "classes"}.` +
    (classes < 2 ? " Label pictures of two classes or more first." : "") +
    (forecast.state === "running" ? ` ${forecast.round} is being forecast; Results can stop it.` : "");
  const isRunning = training.state === "running" || training.state === "elsewhere";
  find("#train").hidden = isRunning;
  find("#train").disabled = classes < 2 || forecast.state === "running";
  find("#minutes").disabled = isRunning;
  find("#stop").hidden = training.state !== "running" || training.is_stopping;
  find("#resume").hidden = isRunning || !training.can_resume;
  find("#live").hidden = !isRunning;
  showProgress(training, isRunning);
  showCommand();
  showRounds(rounds);
  if (isOpen && figures !== null) drawNew(figures);
}

function showCommand() {
  const { training, command } = run.status;
  const own = training.state === "running" || training.can_resume;
  find("#train-command").textContent = own ? training.command : command.replace(/--minutes \d+/, `--minutes ${find("#minutes").value}`);
}

function showProgress(training, isRunning) {
  const { state, round, step, iterations, left, trusted, pseudo_accuracy: right, message } = training;
  find("#training").hidden = !isRunning;
  const problem = find("#training-problem");
  problem.hidden = state !== "failed";
  if (state === "failed") problem.textContent = `${round} failed: ${message}`;
  if (!isRunning) return;
  const bar = find("#training-bar");
  if (step && iterations) bar.value = step / iterations;
  else bar.removeAttribute("value");
  const words = [round];
  const { title, done, total } = training.counting ?? {};
  if (!step) words.push(title ? `preparing: ${title}, ${count(done)} of ${count(total)}` : "preparing: checking the pictures, computing features");
  else if (step >= iterations) words.push("finishing: calibration and results");
  else words.push(`step ${count(step)} of ${count(iterations)}`);
  if (left > 0 && !(step >= iterations)) words.push(`about ${duration(left)} left`);
  if (trusted !== undefined) words.push(`${percent(trusted, 0)} of the pseudo-labels trusted`);
  if (right !== undefined) words.push(`${percent(right, 0)} of those right`);
  if (training.is_stopping) words.push("stopping: its state is being saved");
  if (state === "elsewhere") words.push("started in a terminal");
  find("#training-words").textContent = words.join(" · ");
}

function showRounds(rounds) {
  find("#rounds").hidden = rounds.length === 0;
  find("#no-rounds").hidden = rounds.length > 0;
  find("#rounds tbody").replaceChildren(...[...rounds].reverse().map((round) => make("tr", {},
    make("th", { scope: "row", text: round.name }),
    make("td", { text: round.labels === null ? "" : count(round.labels) }),
    make("td", { text: `${count(round.step)} of ${count(round.iterations ?? 0)}` }),
    make("td", { text: errorOf(round) }))));
}

function errorOf({ is_finished: isFinished, scores, probe }) {
  if (!isFinished) return "not finished";
  if (scores.error !== undefined) return `${scores.error.toFixed(1)} % of ${count(scores.n)} test images`;
  return probe ? `not measured; a linear probe has ${probe}` : "not measured";
}
