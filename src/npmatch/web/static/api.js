// Requests to the server: each returns the JSON of the response, or throws an error with a message for the user.

const maxAttempts = 4; // while the server answers 503

export async function fetchJson(path, options = {}) {
  for (let attempt = 1; ; attempt += 1) {
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      throw new Error("The server does not respond. Is npmatch serve still running?");
    }
    if (response.status === 503 && attempt < maxAttempts) {
      await pause(1000 * Number(response.headers.get("Retry-After") || 1));
      continue;
    }
    const body = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(body.error || `The server answered with status ${response.status}.`);
    return body;
  }
}

// `keepalive`: a label that is being sent arrives even if the page is closed.
export const post = (path, value) =>
  fetchJson(path, { method: "POST", keepalive: true, headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });

// Identifies this browser, so that undo takes back only its own changes. It is random and names nobody.
export const userId = storedId();

function storedId() {
  const fresh = [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  try {
    localStorage.setItem("npmatch-me", localStorage.getItem("npmatch-me") ?? fresh);
    return localStorage.getItem("npmatch-me");
  } catch { // a browser without local storage: the name lasts as long as the page
    return fresh;
  }
}

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
