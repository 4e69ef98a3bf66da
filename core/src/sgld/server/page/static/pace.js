// When the server may make another chunk: it rests until the page has taken the one before.
//
// In good time: when a chunk was shown; chunks then wait here, and a key waits for them.
// Just in time: so early that the next chunk arrives as the last picture here is shown, as far as
// can be told from how long the last ones took. What a key did is then seen soonest.

const REMEMBERED = 8;
const MARGIN = 1.2;
const MARGIN_PICTURES = 2;

export class Pace {
  #take;
  #justInTime = false;
  #fps = 16;
  #most = Infinity;
  #arrived = null;
  #asked = null;
  #spans = [];

  /** @param {(requestId: string) => void} take tells the server that it has taken a chunk */
  constructor(take) {
    this.#take = take;
  }

  /** A session begins; a chunk has `pictures`. */
  open({ justInTime, fps, pictures }) {
    this.#justInTime = justInTime;
    this.#fps = fps;
    // Asking earlier than a whole chunk ahead would only let pictures pile up here.
    this.#most = (pictures * 1000) / fps;
    this.#spans = [];
    this.#arrived = this.#asked = null;
  }

  /** How long the next chunk takes says nothing: the session was stopped, or cut off. */
  disturbed() {
    this.#asked = null;
  }

  /** The session went back: what is here is done with. */
  flush() {
    if (this.#arrived !== null) this.#take(this.#arrived);
    this.#arrived = this.#asked = null;
  }

  /** The last picture of a chunk is here; `waiting` pictures are still to be shown. */
  arrived(requestId, waiting) {
    if (!this.#justInTime) return;
    if (this.#asked !== null) {
      this.#spans.push(performance.now() - this.#asked);
      if (this.#spans.length > REMEMBERED) this.#spans.shift();
    }
    this.#arrived = requestId;
    this.waits(waiting);
  }

  /** `waiting` pictures are still to be shown. */
  waits(waiting) {
    if (this.#arrived === null || (waiting * 1000) / this.#fps > this.#lead) return;
    const requestId = this.#arrived;
    this.#arrived = null;
    this.#asked = performance.now();
    this.#take(requestId);
  }

  /** The last picture of a chunk was shown. */
  shown(requestId) {
    if (!this.#justInTime) this.#take(requestId);
    else if (requestId === this.#arrived) this.waits(0);
  }

  /** Milliseconds before the last picture at which to ask for more: by the slowest but one of the
   * last chunks, so that a single slow one does not count for long. */
  get #lead() {
    if (!this.#spans.length) return this.#most;
    const slowest = this.#spans.toSorted((one, other) => other - one);
    const span = slowest[Math.min(1, slowest.length - 1)];
    return Math.min(this.#most, span * MARGIN + (MARGIN_PICTURES * 1000) / this.#fps);
  }
}
