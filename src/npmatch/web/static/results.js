// Results: the error of a model, what it takes for what, predictions of new pictures as a table, and its ONNX file.

import { fetchJson, post } from "./api.js";
import * as audit from "./audit.js";
import * as forecast from "./forecast.js";
import { count, find, isolated, level, make, notify, percent, picture } from "./dom.js";

const mostShown = 60; // predicted pictures with a thumbnail
let run;
let loaded = ""; // model and labels of the results on the page
const estimates = new Map(); // by round, so that the tile does not flicker
let csvUrl;
let isPredicting = false;

export function listen(sharedRun, refresh) {
  run = sharedRun;
  forecast.listen(run, refresh);
  find("#model").addEventListener("change", load);
  find("#onnx").addEventListener("click", exportModel);
  find("#file").addEventListener("change", (event) => {
    predict([...event.target.files].map((file) => [file.name, file]));
    event.target.value = ""; // so that the same files can be chosen again
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", async (event) => {
    event.preventDefault(); // otherwise the browser would open the file instead of the page
    const files = await droppedFiles(event.dataTransfer);
    if (!files.length) return;
    location.hash = "results";
    predict(files);
  });
}

export const open = () => update(run, true);

export function update(_, isOpen) {
  const models = [...run.status.rounds].reverse().filter(({ is_finished: isFinished }) => isFinished).map(({ name }) => [name, name]);
  if (run.status.quick_look) models.push(["", "quick look"]);
  const choice = find("#model");
  const before = [...choice.options].map(({ value }) => value);
  if (JSON.stringify(before) !== JSON.stringify(models.map(([value]) => value))) {
    const chosen = choice.value;
    const isOlder = before.indexOf(chosen) > 0 && models.some(([value]) => value === chosen);
    choice.replaceChildren(...models.map(([value, text]) => make("option", { value, text }))); // the newest is chosen
    if (isOlder) choice.value = chosen; // unless somebody has chosen another
  }
  find("#no-model").hidden = models.length > 0;
  find("#with-model").hidden = models.length === 0;
  find("#results-lead").textContent = "The model chosen here predicts new pictures and is exported.";
  forecast.update();
  if (isOpen && models.length && loaded !== version()) load();
}

function version() {
  const round = find("#model").value;
  const beside = run.status.rounds.find(({ name }) => name === round)?.beside;
  return `${round}-${run.status.guesses?.source}-${run.status.quick_look}-${beside}`;
}

async function load() {
  loaded = version();
  const round = find("#model").value;
  try {
    const asked = new URLSearchParams({ round });
    const [result, measured] = await Promise.all([fetchJson(`/api/results?${asked}`), audit.showCard(round), forecast.showCard(round)]);
    const isShown = () => round === find("#model").value;
    result.estimate = estimates.get(round);
    if (isShown()) show(round, result, measured);
    if (result.basis !== "between" || measured || result.estimate) return;
    result.estimate = await fetchJson(`/api/estimate?${asked}`).catch((error) => ({ error: null, source: error.message }));
    estimates.set(round, result.estimate);
    if (isShown()) show(round, result, measured);
  } catch (error) {
    find("#error-tiles").replaceChildren(make("p", { class: "muted", text: error.message }));
    loaded = "";
  }
}

const known = (error) => error !== null && error !== undefined;
const shortly = (error) => error.toFixed(error < 10 ? 1 : 0);

// The error in words, and where it comes from.
const bases = {
  test: ({ error, level: share, low, high, images }) => [`${error.toFixed(1)} %`,
    `${level(share)} sure: ${low.toFixed(1)} to ${high.toFixed(1)} %, measured on ${count(images)} test images`],
  between: ({ estimate, quick_look: other }) => {
    if (!estimate) return ["…", "The model looks at the pictures without a label."];
    const found = [estimate.error, other].filter(known);
    const value = found.length > 1 ? `${shortly(Math.min(...found))} to ${shortly(Math.max(...found))} %` : found.length ? `about ${shortly(found[0])} %` : "unknown";
    const own = known(estimate.error) ? `About ${shortly(estimate.error)} % ${estimate.source}, as in the report; often too low. ` : `${estimate.source}. `;
    const look = known(other) ? `${shortly(other)} % on labels that the quick look had not seen. ` : "";
    return [value, `${own}${look}Neither is a bound; “Is it good enough?” below measures the error.`];
  },
  folds: ({ error, images }) => [known(error) ? `about ${shortly(error)} %` : "unknown",
    `On ${count(images)} labels, each left out of the fit in turn. They are not a random sample.`],
};

const tile = (title, value, basis, isEstimated = false) => make("div", { class: "tile" },
  make("span", { text: title }),
  make("b", { text: value }),
  isEstimated ? make("small", { class: "estimated", text: "estimated, not measured" }) : "",
  make("small", { text: basis }));

function show(round, result, audited) {
  const isMeasured = result.basis === "test";
  const tiles = isMeasured || !audited ? [tile("Error", ...bases[result.basis](result), !isMeasured)] : [];
  if (audited) {
    const range = `${level(audited.level)} sure: ${percent(audited.low)} to ${percent(audited.high)}`;
    tiles.push(tile("Error on your pictures", percent(audited.error), `${range}, measured on ${count(audited.n)} drawn at random`));
  }
  find("#error-tiles").replaceChildren(...tiles);
  showConfusions(round, result);
  showKept(result.kept);
  find("#export-card").hidden = !round;
  find("#onnx-file").hidden = true;
  for (const [id, key] of [["predict", "predict"], ["evaluate", "evaluate"]]) {
    find(`#${id}-row`).hidden = !result.commands[key];
    find(`#${id}-command`).textContent = result.commands[key] ?? "";
  }
  find("#export-command").textContent = result.commands.export ?? "";
}

function showConfusions(round, { confusions, basis }) {
  find("#confusions-lead").textContent = confusions.length
    ? (basis === "test" ? "Test images." : "Labelled pictures, as the quick look takes them when it has not seen their label.")
    : "No mistakes are known.";
  find("#confusions").replaceChildren(...confusions.map(({ true: right, predicted, count: number, images }) =>
    make("div", { class: "finding" },
      make("h3", { text: `${isolated(right)} taken for ${isolated(predicted)}: ${count(number)}` }),
      make("ul", { class: "small-shots" }, ...images.map((one) => make("li", {}, shot(round, one, right)))))));
}

const shot = (round, { image, test }, alt) =>
  (test === undefined ? picture(image, alt) : make("img", { src: `/api/test-images/${test}?${new URLSearchParams({ round })}`, alt, loading: "lazy" }));

function showKept(kept) {
  find("#kept").hidden = kept.length === 0;
  find("#kept-lead").textContent = kept.length
    ? "If only the surest answers are given, on the test images:"
    : "This is known only for a round with test images.";
  find("#kept tbody").replaceChildren(...kept.map(({ kept: share, error }) =>
    make("tr", {}, make("td", { text: percent(share, 0) }), make("td", { text: `${error.toFixed(1)} %` }))));
}

async function exportModel() {
  const button = find("#onnx");
  const round = find("#model").value;
  button.disabled = true;
  button.textContent = "Exporting…";
  try {
    await post("/api/export", { round });
    const link = find("#onnx-file");
    link.href = `/api/model.onnx?${new URLSearchParams({ round })}`;
    link.hidden = false;
  } catch (error) {
    notify(error.message, true);
  } finally {
    button.disabled = false;
    button.textContent = "Export to ONNX";
  }
}

// Names and files of what was dropped; of a folder, all files below it.
async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...transfer.files].map((file) => [file.name, file]);
  const found = [];
  for (const entry of entries) await walk(entry, found);
  return found;
}

async function walk(entry, found) {
  if (entry.isFile) {
    const file = await new Promise((done, fail) => entry.file(done, fail));
    found.push([entry.fullPath.replace(/^\//, ""), file]);
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    const some = await new Promise((done, fail) => reader.readEntries(done, fail));
    if (!some.length) return;
    for (const one of some) await walk(one, found);
  }
}

async function predict(files) {
  if (isPredicting) {
    notify("The pictures before these are still being predicted.", true);
    return;
  }
  isPredicting = true;
  const round = new URLSearchParams({ round: find("#model").value });
  const images = files.filter(([, file]) => !file.type || file.type.startsWith("image/"));
  const rows = [["path", "label", "confidence", "uncertainty", "withheld", "model", "problem"]];
  const words = find("#predict-words");
  find("#predictions").replaceChildren();
  find("#predictions-csv").hidden = true;
  let problems = files.length - images.length;
  for (const [index, [name, file]] of images.entries()) {
    words.textContent = `${count(index)} of ${count(images.length)} predicted`;
    try {
      if (file.size > run.limits.upload_bytes) throw new Error("larger than the server allows");
      const answer = await fetchJson(`/api/predict?${round}`, { method: "POST", body: file });
      const [first] = answer.classes;
      rows.push([name, first.name, first.probability, answer.entropy, answer.withheld ?? "", answer.model || "quick look", ""]);
      if (index < mostShown) showPrediction(name, file, first, answer);
    } catch (error) {
      problems += 1;
      rows.push([name, "", "", "", "", "", error.message]);
    }
  }
  const done = rows.length - 1 - (problems - (files.length - images.length));
  words.textContent = `${count(done)} predicted${problems ? `, ${count(problems)} not` : ""}.`;
  offerTable(rows);
  isPredicting = false;
}

function showPrediction(name, file, first, { sureness }) {
  const image = make("img", { alt: name });
  const url = URL.createObjectURL(file);
  image.addEventListener("load", () => URL.revokeObjectURL(url));
  image.src = url;
  find("#predictions").append(make("li", { title: name }, image, make("b", { text: first.name }),
    make("span", { class: "small muted", text: `${percent(first.probability, 0)}, ${sureness}` })));
}

const cell = (value) => (/[",\r\n]/.test(String(value)) ? `"${String(value).replaceAll('"', '""')}"` : String(value));

function offerTable(rows) {
  if (csvUrl) URL.revokeObjectURL(csvUrl);
  csvUrl = URL.createObjectURL(new Blob([rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n"], { type: "text/csv" }));
  const link = find("#predictions-csv");
  link.href = csvUrl;
  link.hidden = rows.length < 2;
}
