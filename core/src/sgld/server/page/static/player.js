// Draws pictures at the session's pace, from a small buffer that evens out how they arrive.

const JITTER_SECONDS = 0.12;
const FREE_PICTURES = 96;

export class Player extends EventTarget {
  #canvas;
  #context;
  #queue = [];
  #fps = 16;
  #due = 0;
  #playing = false;
  #frozen = false;
  #frame = 0;
  #timer = 0;

  /**
   * Tells `shown` for each picture drawn, with `detail` the picture, and `chunkshown` with the
   * last picture of a chunk when it was drawn or passed over.
   * @param {HTMLCanvasElement} canvas
   */
  constructor(canvas) {
    super();
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d", { alpha: false });
    document.addEventListener("visibilitychange", () => {
      cancelAnimationFrame(this.#frame);
      clearTimeout(this.#timer);
      this.#frame = this.#timer = 0;
      this.#schedule();
    });
  }

  /** @param {number} fps pictures per second */
  set fps(fps) {
    this.#fps = fps;
  }

  /** How many pictures wait. */
  get waiting() {
    return this.#queue.length;
  }

  /** Stands still on the present picture; what arrives is kept. */
  set frozen(frozen) {
    this.#frozen = frozen;
    if (!frozen) this.#schedule();
  }

  get frozen() {
    return this.#frozen;
  }

  /** @param {import("./decoders.js").Picture} picture */
  add(picture) {
    this.#queue.push(picture);
    // A decoded video frame holds a place of a small pool: without it the decoder stands still.
    if (this.#queue.length > FREE_PICTURES) this.#detach(this.#queue.at(-1));
    this.#schedule();
  }

  /** Drops what waits, and tells what it was. */
  clear() {
    const dropped = this.#queue;
    for (const picture of dropped) picture.free();
    this.#queue = [];
    this.#playing = false;
    return dropped;
  }

  /** Draws a picture at once, such as a remembered one. */
  show(source, width, height) {
    this.#draw({ source, width, height });
  }

  #detach(picture) {
    const { source, width, height } = picture;
    if (!source || !("displayWidth" in source)) return;
    const copy = new OffscreenCanvas(width, height);
    copy.getContext("2d", { alpha: false }).drawImage(source, 0, 0, width, height, 0, 0, width, height);
    picture.free();
    picture.source = copy.transferToImageBitmap();
    picture.free = () => picture.source.close();
  }

  #schedule() {
    if (this.#frame || this.#timer || this.#frozen || !this.#queue.length) return;
    // A hidden page gets no animation frames; it plays on coarsely, so that the session goes on.
    if (document.hidden) this.#timer = setTimeout(() => this.#tick(performance.now()), 1000 / this.#fps);
    else this.#frame = requestAnimationFrame((now) => this.#tick(now));
  }

  #tick(now) {
    this.#frame = this.#timer = 0;
    if (this.#frozen) return;
    if (!this.#playing && this.#enough()) {
      this.#playing = true;
      this.#due = now;
    }
    if (this.#playing) this.#play(now);
    this.#schedule();
  }

  /** Begin when the buffer lasts a moment, or holds a whole chunk. */
  #enough() {
    const wanted = Math.max(1, Math.ceil(JITTER_SECONDS * this.#fps));
    return this.#queue.length >= wanted || this.#queue.some((picture) => picture.last);
  }

  #play(now) {
    let picture = null;
    while (this.#queue.length && now >= this.#due) {
      // Too late for this one, as after a slow frame of the browser: only the newest is drawn.
      if (picture) this.#pass(picture);
      picture = this.#queue.shift();
      this.#due += 1000 / this.#fps;
    }
    if (picture) {
      if (picture.source) this.#draw(picture);
      this.#pass(picture);
    }
    if (!this.#queue.length && now >= this.#due) this.#playing = false;
    // Never try to make up for more than a moment.
    if (now - this.#due > 250) this.#due = now;
  }

  #draw(picture) {
    const { source, width, height } = picture;
    if (this.#canvas.width !== width || this.#canvas.height !== height) {
      this.#canvas.width = width;
      this.#canvas.height = height;
    }
    if (source instanceof ImageData) this.#context.putImageData(source, 0, 0);
    // Video has even sides: what is beyond the picture's own is left out.
    else if ("displayWidth" in source) this.#context.drawImage(source, 0, 0, width, height, 0, 0, width, height);
    else this.#context.drawImage(source, 0, 0, width, height);
    if ("chunk" in picture) this.dispatchEvent(new CustomEvent("shown", { detail: picture }));
  }

  #pass(picture) {
    picture.free();
    if (picture.last) this.dispatchEvent(new CustomEvent("chunkshown", { detail: picture }));
  }
}
