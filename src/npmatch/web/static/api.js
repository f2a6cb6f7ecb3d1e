// Talking to the server: an answer, or an error that says in one line what is wrong.

const tries = 4; // where the server is busy and asks to come again

export async function ask(path, options = {}) {
  for (let attempt = 1; ; attempt += 1) {
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      throw new Error("The server does not answer; is npmatch serve still running?");
    }
    if (response.status === 503 && attempt < tries) {
      await pause(1000 * Number(response.headers.get("Retry-After") || 1));
      continue;
    }
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(answer.error || `The server answered ${response.status}.`);
    return answer;
  }
}

// `keepalive`: a label that is on its way arrives though the page is closed.
export const post = (path, value) =>
  ask(path, { method: "POST", keepalive: true, headers: { "Content-Type": "application/json" }, body: JSON.stringify(value) });

// Who labels here: everyone takes back their own steps alone. The name says nothing about anybody.
export const me = browserName();

function browserName() {
  const fresh = [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  try {
    localStorage.setItem("npmatch-me", localStorage.getItem("npmatch-me") ?? fresh);
    return localStorage.getItem("npmatch-me");
  } catch { // a browser that keeps nothing: the name lasts as long as the page
    return fresh;
  }
}

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
