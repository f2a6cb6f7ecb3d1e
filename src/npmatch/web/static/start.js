// The first step: how many pictures there are, what is wrong with them, and the classes.

import { fetchJson, post, userId } from "./api.js";
import { count, find, make, notify, picture } from "./dom.js";
import { asides } from "./folder-desk.js";

let shownClasses = "";
let shownCheck = 0; // the check of the pictures whose findings are on the page
let refresh;

export function listen(_, sharedRefresh) {
  refresh = sharedRefresh;
  find("#look-again").addEventListener("click", () => lookAgain(true));
  find("#add-class").addEventListener("submit", (event) => {
    event.preventDefault();
    const name = find("#new-class").value.trim();
    if (name) change({ name }).then((isDone) => { if (isDone) find("#new-class").value = ""; });
  });
}

export const open = () => lookAgain(false);

// Asks the server whether there are other pictures in the folder by now.
async function lookAgain(tellsAlways) {
  try {
    const { new: added, gone } = await post("/api/look-again", {});
    const words = [added && `${count(added)} new`, gone && `${count(gone)} gone`].filter(Boolean).join(", ");
    if (words) notify(`Pictures: ${words}. They are being checked.`);
    else if (tellsAlways) notify("There are no other pictures.");
    if (words) await refresh();
  } catch (error) {
    notify(error.message, true);
  }
}

export function update(run) {
  const { counts, sizes, progress, checks } = run.status;
  const [smallest, , largest] = sizes?.width ?? [];
  const range = smallest === largest ? smallest : `${smallest} to ${largest}`;
  const size = smallest ? `, ${range} pixels wide` : "";
  find("#start-lead").textContent =
    `${count(counts.images)} pictures in ${run.folder}${size}. ${count(counts.labelled)} have a label.`;
  find("#check-command").textContent = run.check;
  showClasses(run.classes.slice(asides.length), counts.of_class);
  if (progress.stage === "checking") find("#findings-lead").textContent = "They are being checked…";
  else if (shownCheck !== checks) showFindings(checks);
}

async function change(request) {
  try {
    await post("/api/classes", { ...request, who: userId });
    await refresh();
    return true;
  } catch (error) {
    notify(error.message, true);
    shownClasses = "";
    await refresh();
    return false;
  }
}

function showClasses(classes, numbers) {
  const state = JSON.stringify([classes, numbers]);
  if (state === shownClasses || find("#class-list").contains(document.activeElement)) return;
  shownClasses = state;
  find("#class-list").replaceChildren(...classes.map((name) => {
    const field = make("input", { type: "text", value: name, maxlength: 100, "aria-label": `Name of class ${name}` });
    field.addEventListener("change", () => {
      const to = field.value.trim();
      if (!to || to === name) { field.value = name; return; }
      if (classes.includes(to) && !confirm(`Merge “${name}” into “${to}”?`)) { field.value = name; return; }
      field.blur();
      change({ name, to });
    });
    const labels = numbers[name] ?? 0;
    const remove = make("button", { type: "button", text: "Remove", "aria-label": `Remove class ${name}`, on: { click: () => change({ name, remove: true }) } });
    return make("li", {}, field, labels ? make("span", { class: "small muted", text: `${count(labels)} ${labels === 1 ? "label" : "labels"}` }) : remove);
  }));
}

async function showFindings(checks) {
  shownCheck = checks;
  try {
    const found = await fetchJson("/api/findings");
    find("#findings-lead").textContent = found.length ? "" : "Nothing was found: all files can be read, and no two look the same.";
    find("#findings").replaceChildren(...found.map(({ kind, level, meaning, count: number, images }) =>
      make("div", { class: "finding" },
        make("h3", { text: `${kind}: ${count(number)}` }),
        make("p", { class: "small muted", text: level === "left out" ? `${meaning}; left out of training` : meaning }),
        make("ul", { class: "small-shots" }, ...images.map(({ image, name }) =>
          make("li", { title: name }, ...(image === null ? [] : [picture(image, name)]), name))))));
  } catch (error) {
    shownCheck = 0;
    notify(error.message, true);
  }
}
