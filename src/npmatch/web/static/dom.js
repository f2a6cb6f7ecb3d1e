// Elements. File and class names are not trusted: they enter the page as text, never as markup.

export const find = (selector, within = document) => within.querySelector(selector);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

let fadeTimer;

// Shows a short message at the edge of the page for a few seconds.
export function notify(message, isProblem = false) {
  const line = find("#say");
  line.textContent = message;
  line.classList.toggle("problem", isProblem);
  line.classList.add("shown");
  clearTimeout(fadeTimer);
  fadeTimer = setTimeout(() => line.classList.remove("shown"), isProblem ? 8000 : 3500);
}

// A name within a sentence: isolated, so that a right-to-left name does not reverse the rest of it.
export const isolated = (name) => `\u2068${name}\u2069`;

export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
export const level = (share) => `${Number((100 * share).toPrecision(3))} %`; // of an interval
export const count = (n) => Math.round(n).toLocaleString("en").replaceAll(",", "\u202f");
export const duration = (seconds) => (seconds < 90 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`);
export const crispBelow = 97; // pixels: smaller images are enlarged without smoothing

export function picture(position, alt = "") {
  const image = make("img", { src: `/api/images/${position}`, alt, loading: "lazy", decoding: "async" });
  image.addEventListener("load", () => image.classList.toggle("crisp", image.naturalWidth < crispBelow));
  image.addEventListener("error", () => image.classList.add("missing"));
  return image;
}

// Fills a table whose rows begin with a name; without rows it is hidden.
export function fillTable(table, columns, rows) {
  table.hidden = rows.length === 0;
  find("thead", table).replaceChildren(make("tr", {}, ...columns.map((text) => make("th", { scope: "col", text }))));
  find("tbody", table).replaceChildren(...rows.map(([name, ...cells]) =>
    make("tr", {}, make("th", { scope: "row", text: name }), ...cells.map((text) => make("td", { text })))));
}

// A button that copies the text of an element, such as a command.
export function copyFrom(button, code) {
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    } catch { // browsers allow the clipboard on localhost and https only
      getSelection().selectAllChildren(code);
    }
  });
}

// The address names a view, and perhaps what it shows: #audit/round1.
export function addressed() {
  try {
    return location.hash.slice(1).split("/").map(decodeURIComponent);
  } catch { // no address of this page
    return [""];
  }
}

// Shows the view that the address names, or the first one, hides the others, and returns its name. Two views may share
// a section of the page, and a view may be part of the step of another.
export function showView(views, first) {
  const [name] = addressed();
  const open = name in views ? name : first;
  const { section = open, step = open } = views[open];
  for (const part of document.querySelectorAll(".view")) part.hidden = part.id !== `view-${section}`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#${step}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  window.scrollTo(0, 0);
  find("#say").classList.remove("shown");
  return open;
}
