// The audit of a round: pictures drawn at random are answered on the labelling desk, without the model's guess, and give
// its error. Results shows how far it is and what it has measured.

import { fetchJson, post, userId } from "./api.js";
import { addressed, count, fillTable, find, level, make, notify } from "./dom.js";
import { makeWire } from "./folder-desk.js";
import * as label from "./label.js";

export const section = "label"; // the view's part of the page
export const step = "results";
export const { onKey } = label;

let run;
let refresh;
let audit = null; // the state of the audit on the page
let choices = [];

const { local, request, taken } = makeWire(() => choices, 1);
const asked = (values) => new URLSearchParams({ round: audit.round, ...values });

const desk = {
  title: "Check pictures",
  isAudit: true,
  paths: { labels: "/api/audit/labels", undo: "/api/audit/undo" },
  async load(_, start, number) {
    const page = await fetchJson(`/api/audit/images?${asked({ start, count: number })}`);
    return { ...page, images: page.images.map(local) };
  },
  request: (image, change) => ({ ...request(image, change), round: audit.round }),
  undoRequest: () => ({ who: userId, round: audit.round }),
  taken,
  create: undefined,
  choices: () => choices,
  counts: () => audit?.counts,
  keep: (counts) => {
    audit.counts = counts;
    showDone();
  },
  fixedKeys: ["-"],
  version: (counts) => counts.version,
  predictable: () => [],
  order: () => "drawn at random",
  whenEmpty: () => "All pictures are answered. Results computes the error.",
};

export function listen(sharedRun, sharedRefresh) {
  run = sharedRun;
  refresh = sharedRefresh;
  find("#audit-form").addEventListener("submit", (event) => {
    event.preventDefault();
    draw(Number(find("#audit-size").value));
  });
  find("#audit-size").addEventListener("change", showCommands);
  find("#audit-interim").addEventListener("change", showCommands);
  find("#audit-more").addEventListener("click", () => draw(audit.sizes[0]));
  find("#audit-look").addEventListener("click", () => ask("/look", { interim: find("#audit-interim").checked }));
  find("#audit-release").addEventListener("click", release);
}

// Opens the pictures of the round that the address names.
export async function open() {
  const [, round] = addressed();
  try {
    await load(round ?? "");
    label.useDesk(desk);
    label.open();
    showDone();
  } catch (error) {
    notify(error.message, true);
    location.hash = "results";
  }
}

async function load(round) {
  take(await fetchJson(`/api/audit?${new URLSearchParams({ round })}`));
}

function take(state) {
  if (JSON.stringify(state.classes) !== JSON.stringify(audit?.classes)) choices = ["none of these", ...state.classes];
  audit = state;
}

// Shows the audit of a round on Results; the quick look, which has no name, has none.
export async function showCard(round) {
  find("#audit-card").hidden = !round;
  if (!round) return null;
  await load(round);
  show();
  return audit.measured;
}

async function ask(path, values) {
  const buttons = document.querySelectorAll("#audit-card button");
  for (const button of buttons) button.disabled = true;
  try {
    const found = await post(`/api/audit${path}`, { round: audit.round, ...values });
    take(found);
    show();
    await refresh();
    return found;
  } catch (error) {
    notify(error.message, true);
    return null;
  } finally {
    for (const button of buttons) button.disabled = false;
  }
}

async function draw(number) {
  notify("Drawing pictures…");
  if (await ask("", { count: number })) location.hash = `audit/${encodeURIComponent(audit.round)}`;
}

async function release() {
  const words = `Their answers go into ${run.table}, and the next training learns from them. They measure no later model. Go on?`;
  if (!confirm(words)) return;
  const found = await ask("/release", {});
  if (found) notify(`${count(found.labels)} answers are in the table of labels now.`);
}

function show() {
  const { counts, sizes, drawn, lines, rows, columns, released } = audit;
  const isPending = counts.todo > 0;
  const isMeasured = drawn > 0 && counts.images === 0;
  const size = find("#audit-size");
  if (!size.options.length) {
    size.append(...sizes.map((number) => make("option", { value: number, text: number })));
    size.value = sizes[1];
  }
  find("#audit-lead").textContent = drawn
    ? `${count(drawn)} of ${count(audit.images)} pictures without a label were drawn at random.`
    : "Pictures without a label are drawn at random; you answer them without seeing the model’s guess, and its error on all of them follows, with an interval.";
  find("#audit-lines").replaceChildren(...lines.map((text) => make("p", { class: "small", text })));
  fillTable(find("#audit-classes"), columns, rows);
  find("#audit-form").hidden = drawn > 0;
  find("#audit-go").hidden = !isPending;
  find("#audit-go a").href = `#audit/${encodeURIComponent(audit.round)}`;
  find("#audit-go a").textContent = `Go on: ${count(counts.labelled)} of ${count(counts.images)} answered`;
  find("#audit-look-row").hidden = !audit.can_look || isPending;
  find("#audit-after").hidden = !isMeasured;
  find("#audit-more").textContent = `${sizes[0]} more`;
  find("#audit-more").hidden = drawn >= audit.images;
  find("#audit-release").hidden = released;
  find("#audit-table").href = `/api/audit/check.csv?${asked()}`;
  showCommands();
}

// What the step costs, and the command that does the same.
function showCommands() {
  const { counts, drawn, commands, next_levels: levels, released } = audit;
  const isMeasured = drawn > 0 && counts.images === 0;
  const [own, joint] = levels ?? [];
  const canGoOn = isMeasured && drawn < audit.images;
  find("#audit-price").textContent = canGoOn
    ? `With more pictures, the next interval holds with ${level(own)}, and all of this audit together with ${level(joint)}.` : "";
  const number = drawn ? audit.sizes[0] : find("#audit-size").value;
  const command = counts.todo ? commands.answer
    : audit.can_look ? commands.look + (find("#audit-interim").checked ? " --interim" : "")
      : isMeasured && !canGoOn ? commands.look : commands.draw.replace("COUNT", number);
  find("#audit-draw").textContent = `Check ${number} pictures`;
  find("#audit-command").textContent = command;
  find("#audit-release-row").hidden = !isMeasured || released;
  find("#audit-release-command").textContent = `${commands.release} && ${commands.label}`;
}

function showDone() {
  const { counts } = audit;
  find("#audit-done").hidden = counts.todo > 0;
  find("#audit-answer-command").textContent = audit.commands.answer;
}
