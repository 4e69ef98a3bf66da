// Live figures: what is shown, how long a chunk takes, how soon a key is seen.

const WINDOW_MS = 2000;
const POINTS = 60;

export class Figures {
  #root;
  #times = [];
  #sent = new Map();
  #lines = new Map();

  /** @param {HTMLElement} root holds `[data-figure]` outputs and `svg[data-line]` */
  constructor(root) {
    this.#root = root;
  }

  clear() {
    this.#times = [];
    this.#sent.clear();
    this.#lines.clear();
    for (const output of this.#root.querySelectorAll("[data-figure]")) output.textContent = "–";
    for (const line of this.#root.querySelectorAll("polyline")) line.setAttribute("points", "");
  }

  /** A key event went out with this number, caused at `at` (page time, ms). */
  sent(number, at) {
    this.#sent.set(number, at);
  }

  /** A picture was drawn. */
  shown(picture) {
    const now = performance.now();
    this.#times.push(now);
    while (this.#times[0] < now - WINDOW_MS) this.#times.shift();
    const span = now - this.#times[0];
    if (this.#times.length > 2) this.set("fps", (((this.#times.length - 1) * 1000) / span).toFixed(1));
    this.set("chunk", String(picture.chunk));
    if (picture.eventId !== null) this.#answered(picture.eventId, now);
  }

  /** A `chunk_stats` message. */
  chunk(stats) {
    this.set("made", `${stats.scheduler_forward_ms} ms`);
    this.#point("made", stats.scheduler_forward_ms);
    this.set("bytes", bytes(stats.session_bytes));
    this.set("rate", bytes(stats.ws_payload_bytes));
  }

  /** @param {string} name @param {string} text */
  set(name, text) {
    const output = this.#root.querySelector(`[data-figure="${name}"]`);
    if (output) output.textContent = text;
  }

  /** The oldest key that this picture is the first to have seen. */
  #answered(number, now) {
    let oldest = Infinity;
    for (const [sent, at] of this.#sent) {
      if (sent > number) continue;
      oldest = Math.min(oldest, at);
      this.#sent.delete(sent);
    }
    if (oldest === Infinity) return;
    this.set("latency", `${Math.round(now - oldest)} ms`);
    this.#point("latency", now - oldest);
  }

  #point(name, value) {
    const line = this.#root.querySelector(`svg[data-line="${name}"] polyline`);
    if (!line) return;
    const values = this.#lines.get(name) ?? [];
    values.push(value);
    if (values.length > POINTS) values.shift();
    this.#lines.set(name, values);
    const top = Math.max(...values) || 1;
    const step = 100 / (POINTS - 1);
    const left = 100 - (values.length - 1) * step;
    const points = values.map((one, index) => `${(left + index * step).toFixed(1)},${(22 - (one / top) * 20).toFixed(1)}`);
    line.setAttribute("points", points.join(" "));
  }
}

/** Bytes as people write them, in powers of 1024. */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let value = count;
  while (value >= 1024 && at < units.length - 1) {
    value /= 1024;
    at += 1;
  }
  return `${at && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}
