// The form that describes a world: its fields, its first frame, and where a refusal belongs.

import { playableFormats } from "./decoders.js";

const FIELDS = { prompt: "prompt", first_frame: "first_frame", size: "size" };
const NUMBERS = ["seed", "max_chunks", "fps", "output_compression", "rewind_chunks"];
/** Parameters of causal models that decide how far back they look. */
const MEMORY = {
  realtime_causal_kv_cache_num_frames: "Window (latents)",
  realtime_causal_sink_size: "Sink (latents)",
};
const PICTURES = ["image/png", "image/jpeg", "image/webp"];

export class Setup {
  #form;
  #facts = null;
  #frame = null;
  #view;

  /** @param {HTMLFormElement} form */
  constructor(form) {
    this.#form = form;
    this.#view = form.querySelector("#frame-view");
    form.querySelector("#seed-new").addEventListener("click", () => this.#newSeed());
    form.querySelector("#frame-none").addEventListener("click", () => this.#setFrame(null));
    form.querySelector("#frame-file").addEventListener("change", ({ target }) => {
      const [file] = target.files;
      target.value = "";
      if (file) this.takeFile(file);
    });
    form.addEventListener("input", ({ target }) => this.#forget(target));
  }

  /** Fill in what the model offers. `facts`: of `/v1/models/{name}`. */
  async offer(facts) {
    this.#facts = facts;
    const { defaults, realtime } = facts;
    const rows = new Map(realtime.parameters.map((row) => [row.name, row]));
    this.#field("prompt").value ||= defaults.prompt ?? "";
    this.#field("size").value ||= `${defaults.width}x${defaults.height}`;
    this.#field("seed").value ||= "42";
    this.#field("fps").value ||= defaults.fps ?? "";
    this.#field("fps").parentElement.hidden = !rows.has("fps");
    const sizes = suggestedSizes(defaults, realtime);
    this.#form.querySelector("#sizes").replaceChildren(...sizes.map((size) => new Option(size, size)));
    this.#form.querySelector(".frame").hidden = !realtime.takes_first_frame;
    this.#form.querySelector("#frame-need").textContent = realtime.needs_first_frame ? "(needed)" : "(optional)";
    for (const [name, label] of Object.entries(MEMORY)) {
      if (rows.has(name) && !this.#field(name)) this.#addNumber(rows.get(name), label);
    }
    await this.#offerFormats(realtime.output_formats);
  }

  #addNumber({ name, minimum, maximum, default: value, description }, label) {
    const input = document.createElement("input");
    Object.assign(input, { type: "number", id: name, name, step: "1", inputMode: "numeric" });
    Object.assign(input, { min: minimum ?? "", max: maximum ?? "", placeholder: value ?? "", title: description });
    const text = document.createElement("label");
    Object.assign(text, { htmlFor: name, textContent: label });
    const place = document.createElement("p");
    place.append(text, input);
    this.#form.querySelector(".two").append(place);
  }

  async #offerFormats(offered) {
    const select = this.#field("realtime_output_format");
    const chosen = select.value;
    const formats = (await playableFormats()).filter(({ id }) => offered.includes(id));
    select.replaceChildren();
    for (const { id, label, reason } of formats) {
      const option = new Option(reason ? `${label} (${reason})` : label, id);
      option.disabled = Boolean(reason);
      select.add(option);
    }
    const first = formats.find(({ id, reason }) => !reason && (!chosen || id === chosen)) ?? formats.find(({ reason }) => !reason);
    if (first) select.value = first.id;
  }

  /** The init message's fields, or null when something is missing; then the form says what. */
  read() {
    for (const fault of this.#form.querySelectorAll(".fault")) fault.textContent = "";
    const text = (name) => this.#field(name).value.trim();
    if (!text("prompt")) return this.blame("prompt", "Say what the world looks like.");
    if (this.#facts.realtime.needs_first_frame && !this.#frame) {
      return this.blame("first_frame", "This model begins from a picture: choose one.");
    }
    const init = {
      prompt: text("prompt"),
      realtime_output_format: text("realtime_output_format"),
      queue_chunks: Number(text("queue_chunks")),
    };
    if (text("size")) init.size = text("size");
    for (const name of [...NUMBERS, ...Object.keys(MEMORY)]) {
      const field = this.#field(name);
      if (!field || field.parentElement.hidden) continue;
      if (field.validity.badInput || (text(name) && !field.checkValidity())) {
        return this.blame(name, `${field.labels[0].textContent}: ${field.validationMessage}`);
      }
      if (text(name)) init[name] = field.valueAsNumber;
    }
    // Raw pixels have no quality.
    if (init.realtime_output_format === "raw") delete init.output_compression;
    // Chunks that wait here are ahead of the one on the screen, and have to be taken back, too.
    if (init.rewind_chunks) init.rewind_chunks += Math.max(1, init.queue_chunks - 1);
    if (this.#frame) init.first_frame = this.#frame;
    return init;
  }

  /** Show a fault at its field; returns null. */
  blame(field, message) {
    const control = this.#form.elements.namedItem(field);
    const place = this.#form.querySelector(`.fault[data-for="${FIELDS[field] ?? "other"}"]`);
    place.textContent = message;
    if (control instanceof HTMLElement) {
      control.setAttribute("aria-invalid", "true");
      control.focus();
    }
    return null;
  }

  /** Whether the form has a place for this field of the init message. */
  knows(field) {
    return field in FIELDS || this.#form.elements.namedItem(field) !== null;
  }

  /** Take a picture file, PNG, JPEG or WebP, as first frame. */
  async takeFile(file) {
    try {
      if (!PICTURES.includes(file.type)) throw new Error();
      const bitmap = await createImageBitmap(file);
      this.#setFrame(new Uint8Array(await file.arrayBuffer()), bitmap);
      bitmap.close();
    } catch {
      this.blame("first_frame", `${file.name} is no PNG, JPEG or WebP picture.`);
    }
  }

  /** Take what a canvas shows as first frame. */
  async takeCanvas(canvas) {
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
    this.#setFrame(new Uint8Array(await blob.arrayBuffer()), canvas);
  }

  #setFrame(bytes, source = null) {
    this.#frame = bytes;
    const { width, height } = this.#view;
    const context = this.#view.getContext("2d");
    context.clearRect(0, 0, width, height);
    if (source) {
      const scale = Math.min(width / source.width, height / source.height);
      const [w, h] = [source.width * scale, source.height * scale];
      context.drawImage(source, (width - w) / 2, (height - h) / 2, w, h);
    }
    this.#view.setAttribute("aria-label", source ? `Picture chosen, ${source.width} by ${source.height}` : "No picture chosen");
    this.#form.querySelector("#frame-none").disabled = !source;
    this.#form.querySelector('.fault[data-for="first_frame"]').textContent = "";
  }

  #newSeed() {
    this.#field("seed").value = String(crypto.getRandomValues(new Uint32Array(1))[0] >>> 1);
  }

  #forget(control) {
    control.removeAttribute("aria-invalid");
    const place = this.#form.querySelector(`.fault[data-for="${FIELDS[control.name] ?? "other"}"]`);
    if (place) place.textContent = "";
  }

  #field(name) {
    return this.#form.elements.namedItem(name);
  }
}

/** The model's own size, upright, and half as large; within what it takes. */
function suggestedSizes({ width, height }, { size_multiple: step, max_pixels: most }) {
  const fit = (side) => Math.max(step, Math.round(side / step) * step);
  const pairs = [[width, height], [height, width], [fit(width / 2), fit(height / 2)], [fit(height / 2), fit(width / 2)]];
  const allowed = pairs.filter(([w, h]) => !most || w * h <= most);
  return [...new Set(allowed.map(([w, h]) => `${w}x${h}`))];
}
