// The forecast of a round: a process that says what more labels would bring, and where they pay most.

import { fetchJson, post } from "./api.js";
import { count, duration, fillTable, find, make, notify } from "./dom.js";

let run;
let refresh;
let shown = ""; // the round whose forecast is on the page

export function listen(sharedRun, sharedRefresh) {
  run = sharedRun;
  refresh = sharedRefresh;
  find("#forecast").addEventListener("click", () => ask("/api/forecast", { round: shown }));
  find("#forecast-stop").addEventListener("click", () => ask("/api/forecast/stop", {}));
}

async function ask(path, request) {
  find("#forecast").disabled = true;
  try {
    await post(path, request);
  } catch (error) {
    notify(error.message, true);
  }
  await refresh();
}

// Shows the last forecast of a round on Results; the quick look, which has no name, has none.
export async function showCard(round) {
  shown = round;
  find("#forecast-card").hidden = !round;
  if (!round) return;
  const { lines, rows, columns, has_figure: hasFigure, command } = await fetchJson(`/api/forecast?${new URLSearchParams({ round })}`);
  find("#forecast-lines").replaceChildren(...lines.map((text) => make("p", { class: "small", text })));
  fillTable(find("#forecast-classes"), columns, rows);
  const figure = find("#forecast-figure");
  figure.hidden = !hasFigure;
  const version = run.status.rounds.find(({ name }) => name === round)?.beside ?? "";
  if (hasFigure) figure.src = `/api/forecast.svg?${new URLSearchParams({ round, v: version })}`;
  find("#forecast-command").textContent = command;
}

export function update() {
  const { forecast, training } = run.status;
  const isRunning = forecast.state === "running";
  const isTraining = training.state === "running" || training.state === "elsewhere";
  find("#forecast").hidden = isRunning;
  find("#forecast").disabled = isTraining;
  find("#forecast-stop").hidden = !isRunning || forecast.is_stopping;
  find("#forecast-bar").hidden = !isRunning;
  const problem = find("#forecast-problem");
  problem.hidden = forecast.state !== "failed" || forecast.round !== shown;
  if (forecast.state === "failed") problem.textContent = `The forecast failed: ${forecast.message}`;
  find("#forecast-words").textContent = isRunning ? progressWords(forecast) : isTraining ? `It waits for the training of ${training.round}.` : "";
  if (!isRunning) return;
  if (forecast.total) find("#forecast-bar").value = forecast.done / forecast.total;
  else find("#forecast-bar").removeAttribute("value");
}

function progressWords({ round, title, done, total, left }) {
  const words = [round, title ? `${title}: ${count(done)} of ${count(total)}` : "preparing"];
  if (left > 1) words.push(`about ${duration(left)} left`);
  return words.join(" · ");
}
