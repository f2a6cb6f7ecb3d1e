// Elements. Names of files and classes come from strangers: they enter the page as text, never as markup.

export const find = (selector, within = document) => within.querySelector(selector);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") element.textContent = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) element.addEventListener(event, act);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

let fading;

export function say(message, isProblem = false) {
  const line = find("#say");
  line.textContent = message;
  line.classList.toggle("problem", isProblem);
  line.classList.add("shown");
  clearTimeout(fading);
  fading = setTimeout(() => line.classList.remove("shown"), isProblem ? 8000 : 3500);
}

// A name within a sentence, which it must not turn around where it is written from right to left.
export const isolated = (name) => `\u2068${name}\u2069`;

export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
export const count = (n) => Math.round(n).toLocaleString("en").replaceAll(",", "\u202f");
export const crispBelow = 97; // pixels: smaller pictures are enlarged as squares rather than as a blur

export function picture(position, alt = "") {
  const image = make("img", { src: `/api/images/${position}`, alt, loading: "lazy", decoding: "async" });
  image.addEventListener("load", () => image.classList.toggle("crisp", image.naturalWidth < crispBelow));
  image.addEventListener("error", () => image.classList.add("missing"));
  return image;
}
