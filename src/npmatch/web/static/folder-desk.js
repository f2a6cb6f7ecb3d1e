// How the labelling desk talks to the server of a folder: answers are sent by the names of their classes, which people
// add and rename while others label; on the page they are numbers of the list of choices.

import { fetchJson, post, userId } from "./api.js";
import { find } from "./dom.js";

export const asides = ["none of these", "broken"]; // the first choices: answers that are no class

// Translates between choices and what is on the wire. `choices()` begins with `numAsides` answers that are no class.
export function makeWire(choices, numAsides) {
  const choiceOf = (name) => (name === null ? -1 : choices().indexOf(name, numAsides));
  const answerOf = (choice) => {
    if (choice === null || choice === undefined) return {};
    return choice < numAsides ? { aside: choices()[choice] } : { label: choices()[choice] };
  };
  const local = (image) => {
    const guess = choiceOf(image.guess);
    const given = image.aside ? choices().indexOf(image.aside) : choiceOf(image.given);
    return { ...image, guess: guess < 0 ? null : guess, given: given < 0 ? null : given };
  };
  const request = (image, change) => ({
    image: image.image,
    who: userId,
    seen: answerOf(image.given),
    ...(change.skip ? { skip: true } : answerOf(change.label)),
  });
  const taken = (answer) => ({ ...answer, changed: answer.changed.map(local) });
  return { choiceOf, local, request, taken };
}

export function makeDesk(run, refresh) {
  const { choiceOf, local, request, taken } = makeWire(() => run.classes, asides.length);
  return {
    async load({ view, predicted }, start, count) {
      const filters = { view, start, count, ...(predicted && { predicted }) };
      const page = await fetchJson(`/api/images?${new URLSearchParams(filters)}`);
      if (page.images.some(({ given }) => given !== null && choiceOf(given) < 0)) await refresh(); // a new class
      return { ...page, images: page.images.map(local) };
    },
    request,
    taken,
    async create(name) {
      const { classes } = await post("/api/classes", { name });
      setClasses(run, classes);
      return choiceOf(name);
    },
    title: "Label pictures",
    fixedKeys: ["-", "."],
    version: (counts) => counts.version,
    predictable: () => (run.status.guesses?.classes ?? []).map((name) => [name, name]),
    order: () => {
      if (run.status.guesses?.source) return `doubtful and different ones first, by ${run.status.guesses.source}`;
      return "representative ones first";
    },
  };
}

export function setClasses(run, classes) {
  const choices = [...asides, ...classes];
  if (JSON.stringify(choices) === JSON.stringify(run.classes)) return false;
  run.classes = choices;
  return true;
}

export function showEnough({ status, table }) {
  const { counts } = status;
  find("#table-name").textContent = table;
  const classes = Object.keys(counts.of_class).length;
  find("#enough").textContent = classes < 2
    ? "Label pictures of two classes or more: then the page begins to guess."
    : `${classes} classes. Four labels of each are a good start; forty in all a good model.`;
}
