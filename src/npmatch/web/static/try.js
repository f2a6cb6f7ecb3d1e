// Trying one image: dropped, chosen or pasted; then the model's prediction for it.

import { fetchJson } from "./api.js";
import { crispBelow, find, isolated, make, notify, percent, picture } from "./dom.js";

let previewUrl; // of the image shown; released when the next one is
let latest = 0; // number of the last request; earlier responses are not shown

export function listen(run, openThisView) {
  const drop = find("#drop");
  const take = (files) => {
    const image = [...files].find((file) => !file.type || file.type.startsWith("image/"));
    if (image) {
      openThisView();
      predict(run, image);
      if (files.length > 1) notify("Only one image at a time: this is the first one.");
    } else if (files.length) {
      notify("This file is not an image.", true);
    }
  };
  find("#file").addEventListener("change", (event) => {
    take(event.target.files);
    event.target.value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault(); // otherwise the browser would open the file instead of the page
    drop.classList.remove("over");
    take(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => take(event.clipboardData.files));
}

export function update(run) {
  find("#view-try .columns").hidden = !run.status.has_model;
  find("#view-try .waiting").hidden = run.status.has_model;
  if (!run.limits) return;
  const { upload_bytes: bytes, upload_pixels: pixels } = run.limits;
  find("#limits").textContent =
    `JPEG, PNG, WebP, GIF, TIFF, BMP or PPM, up to ${Math.round(bytes / 2 ** 20)} MB and ` +
    `${Math.round(pixels / 1e6)} megapixels. The image stays on the machine that serves this page.`;
}

async function predict(run, file) {
  const request = ++latest;
  const card = find("#answer");
  showPreview(file);
  card.setAttribute("aria-busy", "true");
  try {
    if (run.limits && file.size > run.limits.upload_bytes) {
      throw new Error(`The file is larger than the ${Math.round(run.limits.upload_bytes / 2 ** 20)} MB allowed.`);
    }
    const answer = await fetchJson("/api/predict", { method: "POST", body: file });
    if (request === latest) show(run, answer);
  } catch (error) {
    if (request === latest) showProblem(error.message);
  } finally {
    if (request === latest) card.removeAttribute("aria-busy");
  }
}

function showPreview(file) {
  const image = find("#preview");
  if (previewUrl) URL.revokeObjectURL(previewUrl);
  previewUrl = URL.createObjectURL(file);
  image.classList.remove("crisp");
  image.onload = () => image.classList.toggle("crisp", image.naturalWidth < crispBelow);
  image.onerror = () => { image.hidden = true; }; // a format the browser cannot show
  image.src = previewUrl;
  image.alt = file.name || "the pasted image";
  image.hidden = false;
  find("#invitation").hidden = true;
  find("#drop").classList.add("full");
  find("#drop .button").textContent = "Choose another";
  find("#file-name").textContent = file.name || "pasted image";
}

function showProblem(message) {
  find("#near").hidden = true;
  find("#answer").replaceChildren(make("p", { class: "problem-text", text: message }));
}

function show(run, answer) {
  const name = (label) => run.classes[label] ?? String(label);
  const preview = find("#preview");
  if (preview.hidden) { // the browser cannot show the file: show the model's input instead
    preview.onload = () => preview.classList.toggle("crisp", answer.crisp);
    preview.src = answer.seen;
    preview.hidden = false;
  }
  const [first] = answer.classes;
  const facts = [["Uncertainty", `${answer.entropy.toFixed(3)} nats, ${percent(answer.share, 0)} of the maximum`]];
  if (answer.disagreement !== null) {
    facts.push(["Disagreement", `${answer.disagreement.toFixed(3)} nats between samples of the model`]);
  }
  find("#answer").replaceChildren(
    make("p", { class: "verdict" },
      make("b", { text: name(first.label) }),
      make("span", { class: `pill sure-${sureClass(answer.share)}`, text: answer.sureness })),
    make("p", { class: "small muted sentence", text: sentence(answer, name(first.label)) }),
    ...remarks(answer, true),
    bars(answer.classes, name),
    dial(answer),
    make("dl", { class: "facts small" }, ...facts.flatMap(([term, text]) => [make("dt", { text: term }), make("dd", { text })])),
    ...remarks(answer, false),
  );
  const near = answer.neighbours;
  find("#near").hidden = near.length === 0;
  find("#near ul").replaceChildren(...near.map(({ image, label, likeness }) =>
    make("li", {},
      picture(image, `labelled ${name(label)}`),
      make("b", { class: label === first.label ? "agrees" : "", text: name(label), title: name(label) }),
      make("span", { class: "small muted", text: likeness.toFixed(3) }))));
}

function sentence({ classes, sureness }, name) {
  const [first, second] = classes;
  const odds = `${percent(first.probability)} for ${isolated(name)}`;
  if (sureness === "very sure") return `The model is very sure: ${odds}.`;
  if (sureness === "fairly sure") return `The model is fairly sure: ${odds}.`;
  const next = `${percent(second.probability)} for the next class`; // there are always at least two classes
  if (sureness === "unsure") return `The model is unsure: ${odds}, ${next}. A person should check it.`;
  return `The model is very unsure: ${odds} is its best guess. Do not rely on it.`;
}

// Sentences about novelty, abstention and calibration; warnings stand above the probabilities.
const remarks = (answer, areSerious) =>
  answer.remarks
    .filter(({ serious }) => serious === areSerious)
    .map(({ text }) => make("p", { class: areSerious ? "small remark serious" : "small remark", text }));

function dial({ share, sureness }) {
  const fill = make("i", { class: `sure-${sureClass(share)}` });
  fill.style.width = `${100 * (1 - share)}%`;
  const meter = { class: "bar-track", role: "meter", "aria-label": "Certainty", "aria-valuemin": 0, "aria-valuemax": 100 };
  return make("div", { class: "dial small" },
    "unsure",
    make("span", { ...meter, "aria-valuenow": Math.round(100 * (1 - share)), "aria-valuetext": sureness }, fill),
    "sure");
}

// The same bounds as UNCERTAINTY_WORDS on the server.
export const sureClass = (share) => (share <= 0.05 ? 3 : share <= 0.25 ? 2 : share <= 0.55 ? 1 : 0);

function bars(classes, name) {
  const rows = classes.map(({ label, probability }) => {
    const fill = make("i");
    fill.style.width = `${100 * probability}%`;
    return make("li", {},
      make("span", { class: "bar-name", text: name(label), title: name(label) }),
      make("span", { class: "bar-track", "aria-hidden": "true" }, fill),
      make("span", { class: "bar-value", text: percent(probability) }));
  });
  return make("ol", { class: "bars", "aria-label": "Probabilities of the classes" }, ...rows);
}
