// Keys, touch pads and a gamepad as one set of held actions.

/** Where the fingers are, not what the keycaps say: the same shape on every keyboard layout. */
const KEYS = {
  KeyW: "w", KeyA: "a", KeyS: "s", KeyD: "d",
  KeyI: "i", KeyJ: "j", KeyK: "k", KeyL: "l",
  ArrowUp: "i", ArrowLeft: "j", ArrowDown: "k", ArrowRight: "l",
};
const ORDER = [..."wasdijkl"];
const DEAD_ZONE = 0.4;

/**
 * Calls `onChange(actions, ms)` with the held actions, in a fixed order, whenever they change; `ms`
 * is the time of the cause in milliseconds since 1970.
 */
export class Controls {
  #holders = new Map();
  #held = "";
  #enabled = false;
  #onChange;
  #pads;
  #gamepads = 0;

  /**
   * @param {object} options
   * @param {HTMLElement} options.pads holds buttons with `data-action`
   * @param {(actions: string[], ms: number) => void} options.onChange
   */
  constructor({ pads, onChange }) {
    this.#onChange = onChange;
    this.#pads = [...pads.querySelectorAll("[data-action]")];
    addEventListener("keydown", (event) => this.#key(event, true));
    addEventListener("keyup", (event) => this.#key(event, false));
    addEventListener("blur", (event) => this.release(event.timeStamp));
    document.addEventListener("visibilitychange", (event) => {
      if (document.hidden) this.release(event.timeStamp);
    });
    for (const button of this.#pads) this.#touch(button);
    addEventListener("gamepadconnected", () => {
      if (!this.#gamepads) this.#poll();
    });
  }

  /** Whether anything is taken; what is held is let go when it ends. */
  set enabled(enabled) {
    this.#enabled = enabled;
    for (const button of this.#pads) button.disabled = !enabled;
    if (!enabled) this.release(performance.now());
  }

  /** Lets everything go. */
  release(at) {
    this.#holders.clear();
    this.#tell(at);
  }

  #key(event, down) {
    const action = KEYS[event.code];
    if (!action) return;
    const source = `key ${event.code}`;
    if (!down) {
      this.#let(source, event.timeStamp);
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || writes(event.target)) return;
    if (!this.#enabled) return;
    event.preventDefault();
    if (!event.repeat) this.#hold(source, action, event.timeStamp);
  }

  #touch(button) {
    const action = button.dataset.action;
    const source = (event) => `pointer ${event.pointerId} ${action}`;
    button.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      event.preventDefault();
      button.setPointerCapture(event.pointerId);
      this.#hold(source(event), action, event.timeStamp);
    });
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) {
      button.addEventListener(name, (event) => this.#let(source(event), event.timeStamp));
    }
    button.addEventListener("contextmenu", (event) => event.preventDefault());
    // Space and Enter on a focused pad hold it as a finger does.
    const presses = (event) => event.code === "Space" || event.code === "Enter";
    button.addEventListener("keydown", (event) => {
      if (!presses(event)) return;
      event.preventDefault();
      if (!event.repeat) this.#hold(`pad ${action}`, action, event.timeStamp);
    });
    button.addEventListener("keyup", (event) => {
      if (presses(event)) this.#let(`pad ${action}`, event.timeStamp);
    });
    button.addEventListener("blur", (event) => this.#let(`pad ${action}`, event.timeStamp));
  }

  #poll() {
    const pads = navigator.getGamepads().filter((pad) => pad !== null);
    this.#gamepads = pads.length;
    for (const pad of pads) this.#sticks(pad);
    for (const source of [...this.#holders.keys()]) {
      const unplugged = !pads.some(({ index }) => source.startsWith(`gamepad ${index} `));
      if (source.startsWith("gamepad") && unplugged) this.#let(source, performance.now());
    }
    if (pads.length) requestAnimationFrame(() => this.#poll());
  }

  #sticks(pad) {
    const [x = 0, y = 0, rx = 0, ry = 0] = pad.axes;
    const wants = { a: x < -DEAD_ZONE, d: x > DEAD_ZONE, w: y < -DEAD_ZONE, s: y > DEAD_ZONE,
      j: rx < -DEAD_ZONE, l: rx > DEAD_ZONE, i: ry < -DEAD_ZONE, k: ry > DEAD_ZONE };
    for (const [action, wanted] of Object.entries(wants)) {
      const source = `gamepad ${pad.index} ${action}`;
      if (wanted) this.#hold(source, action, performance.now());
      else this.#let(source, performance.now());
    }
  }

  #hold(source, action, at) {
    if (!this.#enabled || this.#holders.has(source)) return;
    this.#holders.set(source, action);
    this.#tell(at);
  }

  #let(source, at) {
    if (this.#holders.delete(source)) this.#tell(at);
  }

  #tell(at) {
    const held = new Set(this.#holders.values());
    const actions = ORDER.filter((action) => held.has(action));
    for (const button of this.#pads) {
      button.classList.toggle("held", held.has(button.dataset.action));
    }
    if (actions.join("") === this.#held) return;
    this.#held = actions.join("");
    this.#onChange(actions, Math.round(performance.timeOrigin + at));
  }
}

function writes(target) {
  return target instanceof HTMLElement && (target.isContentEditable || target.matches("input, textarea, select"));
}
