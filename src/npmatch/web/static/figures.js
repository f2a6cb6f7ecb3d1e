// The run's figures, drawn by the server, and again whenever the run has logged more.

import { fetchJson } from "./api.js";
import { count, find, make, notify } from "./dom.js";

let shown = ""; // version of the figures on the page

export const open = (run) => update(run, true);

export function update(run, isOpen) {
  if (!isOpen || !run.status) return;
  const isLive = run.status.stage === "training";
  find("#live").hidden = !isLive;
  find("#figures-lead").textContent = isLive
    ? "The run is training; the curves are updated as it goes."
    : "Training curves, and the accuracy and calibration of the final model.";
  showTiles(run);
  drawNew(run.status.figures);
}

export function drawNew(version) {
  if (version !== shown) draw(version);
}

function showTiles({ status: { scores }, learned_from: labels }) {
  const tiles = [
    ["Error", scores.error, "%", `of ${count(scores.n ?? 0)} test images`],
    ["ECE", scores.ece, "%", "gap between confidence and accuracy"],
    ["UCE", scores.uce, "%", "gap between uncertainty and error"],
    ["Labels", labels, "", "used in training"],
  ].filter(([, value]) => value !== undefined && value !== null);
  const box = find("#tiles");
  box.hidden = scores.error === undefined;
  box.replaceChildren(...tiles.map(([name, value, unit, meaning]) =>
    make("div", { class: "tile" },
      make("span", { text: name }),
      make("b", { text: unit ? `${value.toFixed(1)} ${unit}` : count(value) }),
      make("small", { text: meaning }))));
}

async function draw(version) {
  shown = version;
  try {
    const figures = await fetchJson("/api/figures");
    find("#no-figures").hidden = figures.length > 0;
    find("#no-figures").textContent = "Nothing has been logged yet.";
    const grid = find("#figure-grid");
    for (const { name, title, about } of figures) {
      const id = `figure-${name}`;
      const card = document.getElementById(id) ?? grid.appendChild(newCard(id));
      find("h2", card).textContent = title;
      find("figcaption", card).textContent = about;
      const image = find("img", card);
      image.alt = `${title}: ${about}`;
      const next = make("img", { src: `/figures/${name}.svg?v=${version}` });
      next.addEventListener("load", () => { image.src = next.src; image.hidden = false; }); // swapped once loaded, so that nothing flickers
    }
    const drawn = new Set(figures.map(({ name }) => `figure-${name}`));
    for (const card of [...grid.children]) if (!drawn.has(card.id)) card.remove(); // of another run
    for (const { name } of figures) grid.append(document.getElementById(`figure-${name}`)); // in the server's order
  } catch (error) {
    shown = "";
    notify(error.message, true);
  }
}

const newCard = (id) =>
  make("figure", { id, class: "card" }, make("h2"), make("img", { hidden: true }), make("figcaption", { class: "small muted" }));
