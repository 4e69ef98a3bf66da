// The server's addresses and the API key. Relative to the page, so that a proxy may move it.

const KEY = "sgld.key";

/** Wrong or missing API key. */
export class KeyWanted extends Error {
  name = "KeyWanted";
}

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY)),
};

/** Address of the realtime WebSocket. */
export function realtimeAddress() {
  const url = new URL("v1/realtime_video/generate", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url;
}

/** Facts of the served model. Raises `KeyWanted`, or an Error with the server's words. */
export async function modelFacts() {
  const { data } = await get("v1/models");
  return get(`v1/models/${data[0].id}`);
}

async function get(path) {
  const key = apiKey.get();
  const answer = await fetch(path, { headers: key ? { authorization: `Bearer ${key}` } : {} });
  const body = await answer.json().catch(() => ({}));
  if (answer.status === 401) throw new KeyWanted(body.error?.message ?? "The server wants an API key.");
  if (!answer.ok) throw new Error(body.error?.message ?? `The server answered ${answer.status}.`);
  return body;
}
