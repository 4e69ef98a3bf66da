// The last chunks as small pictures in a row; choosing one goes back to it.

const HEIGHT = 54;

export class History {
  #list;
  #onChoose;
  #keep = 0;
  #entries = [];

  /**
   * @param {HTMLElement} list an `ol`
   * @param {(chunk: number) => void} onChoose generation shall go on behind this chunk
   */
  constructor(list, onChoose) {
    this.#list = list;
    this.#onChoose = onChoose;
  }

  /** How many chunks can be gone back; forgets what was there. */
  open(keep) {
    this.clear();
    this.#keep = keep;
    this.#list.hidden = keep === 0;
  }

  clear() {
    this.#entries = [];
    this.#list.replaceChildren();
  }

  /** The newest chunk whose last picture is here, or -1. */
  get newest() {
    return this.#entries.at(-1)?.chunk ?? -1;
  }

  /** Remember what `canvas` shows as the end of `chunk`. */
  add(chunk, canvas) {
    if (!this.#keep) return;
    const small = document.createElement("canvas");
    small.height = HEIGHT;
    small.width = Math.max(1, Math.round((canvas.width / canvas.height) * HEIGHT));
    small.getContext("2d").drawImage(canvas, 0, 0, small.width, small.height);
    const button = document.createElement("button");
    button.type = "button";
    button.title = `Go back to the end of chunk ${chunk}`;
    button.setAttribute("aria-label", button.title);
    button.addEventListener("click", () => this.#onChoose(chunk));
    const number = document.createElement("span");
    number.textContent = String(chunk);
    button.append(small, number);
    const item = document.createElement("li");
    item.append(button);
    this.#list.append(item);
    this.#entries.push({ chunk, item, small });
    // One more than can be gone back: the present one.
    while (this.#entries.length > this.#keep + 1) this.#entries.shift().item.remove();
    this.#list.scrollLeft = this.#list.scrollWidth;
  }

  /** Forget what came behind `chunk`; returns its picture, or null if it is not here. */
  back(chunk) {
    while (this.#entries.length && this.#entries.at(-1).chunk > chunk) this.#entries.pop().item.remove();
    const last = this.#entries.at(-1);
    return last?.chunk === chunk ? last.small : null;
  }
}
