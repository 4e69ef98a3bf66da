// From a frame batch to pictures that a canvas can draw, in order, whatever the format.
//
//   const decoder = new Decoder({ onPicture, onError });
//   decoder.push(batch)     batch: a frame_batch map with `payload`; its first `seen` pictures are
//                           decoded, since others build on them, but do not come out again
//   decoder.reset()         forget what is not out yet; what comes next begins anew

/**
 * @typedef {object} Picture
 * @property {ImageBitmap | VideoFrame | ImageData | null} source null where it could not be decoded
 * @property {number} width
 * @property {number} height
 * @property {number} chunk index of its chunk
 * @property {string} requestId id of its chunk, which no other chunk of the session has
 * @property {boolean} last the last one of its chunk
 * @property {number | null} eventId newest event that its chunk has seen
 * @property {() => void} free gives its memory back
 */

/** Formats of the protocol, the best for a browser first, and why one cannot be played here. */
export async function playableFormats() {
  return [
    { id: "h264", label: "H.264 video", reason: await h264Reason() },
    { id: "webp", label: "WebP pictures", reason: "" },
    { id: "jpeg", label: "JPEG pictures", reason: "" },
    { id: "raw", label: "Raw pixels", reason: "" },
  ];
}

async function h264Reason() {
  if (!globalThis.isSecureContext) return "needs https or localhost";
  if (!("VideoDecoder" in globalThis)) return "not in this browser";
  try {
    const answer = await VideoDecoder.isConfigSupported({ codec: "avc1.42E01E" });
    return answer.supported ? "" : "not in this browser";
  } catch {
    return "not in this browser";
  }
}

export class Decoder {
  #onPicture;
  #onError;
  #epoch = 0;
  #order = Promise.resolve();
  #video = null;

  /**
   * A picture that cannot be decoded is told to `onError` and comes out without a source, so that
   * whoever counts pictures misses none.
   * @param {{onPicture: (picture: Picture) => void, onError: (error: Error) => void}} handlers
   */
  constructor({ onPicture, onError }) {
    this.#onPicture = onPicture;
    this.#onError = onError;
  }

  /** Decode a batch; its pictures come out after those of the batches before it. */
  push(batch) {
    let parts;
    try {
      parts = slices(batch);
    } catch (error) {
      this.#onError(error);
      parts = Array(batch.num_frames).fill(new Uint8Array());
    }
    if (batch.encoding === "h264") this.#pushVideo(batch, parts);
    else this.#pushPictures(batch, parts);
  }

  reset() {
    this.#epoch += 1;
    this.#order = Promise.resolve();
    this.#video?.close();
    this.#video = null;
  }

  #pushPictures(batch, parts) {
    const epoch = this.#epoch;
    const decode = batch.encoding === "raw" ? fromRaw : fromImage;
    // All at once, so that the browser may use its threads; awaited in order.
    const decoded = parts.map((part) => decode(part, batch));
    for (const one of decoded) one.catch(() => {});
    this.#order = this.#order.then(async () => {
      for (const [index, one] of decoded.entries()) {
        let source = null;
        try {
          source = await one;
        } catch {
          if (epoch === this.#epoch) this.#onError(new Error("A picture from the server cannot be decoded."));
        }
        const made = picture(source, batch, index, parts.length);
        if (epoch === this.#epoch && index >= (batch.seen ?? 0)) this.#onPicture(made);
        else made.free();
      }
    });
  }

  #pushVideo(batch, parts) {
    // One that has failed is of no more use; each chunk begins with a key frame.
    if (this.#video?.failed) this.#video = null;
    this.#video ??= new Video(this.#onPicture, this.#onError);
    this.#video.push(batch, parts);
  }
}

/** H.264 access units in Annex B; parameter sets travel with the key frames. */
class Video {
  failed = false;
  #decoder;
  #codec = "";
  #next = 0;
  #begun = false;
  #waiting = new Map();
  #onPicture;
  #onError;

  constructor(onPicture, onError) {
    this.#onPicture = onPicture;
    this.#onError = onError;
    this.#decoder = new VideoDecoder({
      output: (frame) => this.#out(frame.timestamp, frame),
      error: (error) => this.#fail(error),
    });
  }

  push(batch, parts) {
    for (const [index, data] of parts.entries()) {
      const timestamp = this.#next;
      this.#next += 1;
      this.#waiting.set(timestamp, { batch, index, count: parts.length });
      const type = batch.key_frames?.[index] ? "key" : "delta";
      this.#begun ||= type === "key";
      try {
        if (this.failed || !this.#begun) this.#out(timestamp, null);
        else this.#decode(batch.codec, { type, timestamp, data });
      } catch (error) {
        this.#fail(error);
      }
    }
  }

  close() {
    this.#waiting.clear();
    if (this.#decoder.state !== "closed") this.#decoder.close();
  }

  #decode(codec, unit) {
    if (codec !== this.#codec) {
      this.#codec = codec;
      this.#decoder.configure({ codec, optimizeForLatency: true });
    }
    this.#decoder.decode(new EncodedVideoChunk(unit));
  }

  #out(timestamp, frame) {
    const about = this.#waiting.get(timestamp);
    this.#waiting.delete(timestamp);
    if (about && about.index >= (about.batch.seen ?? 0)) {
      this.#onPicture(picture(frame, about.batch, about.index, about.count));
    } else {
      frame?.close();
    }
  }

  #fail(error) {
    if (this.failed) return;
    this.failed = true;
    this.#onError(new Error(`The browser cannot decode this video (${error.message}). WebP may work.`));
    for (const timestamp of [...this.#waiting.keys()]) this.#out(timestamp, null);
    if (this.#decoder.state !== "closed") this.#decoder.close();
  }
}

function slices(batch) {
  const { payload, num_frames: count } = batch;
  if (!count) return [];
  const lengths = batch.encoding === "raw" ? Array(count).fill(batch.bytes_per_frame) : batch.payload_lengths;
  const total = (lengths ?? []).reduce((sum, length) => sum + length, 0);
  if ((lengths ?? []).length !== count || total !== payload.length) {
    throw new Error("The server's frame batch does not add up: lengths and payload differ.");
  }
  let at = 0;
  return lengths.map((length) => payload.subarray(at, (at += length)));
}

async function fromImage(part, batch) {
  const blob = new Blob([part], { type: batch.content_type });
  return createImageBitmap(blob, { colorSpaceConversion: "none" });
}

async function fromRaw(rgb, { width, height }) {
  if (rgb.length !== 3 * width * height) throw new Error("not as many bytes as pixels have");
  const image = new ImageData(width, height);
  const rgba = new Uint32Array(image.data.buffer);
  for (let pixel = 0, at = 0; pixel < rgba.length; pixel += 1, at += 3) {
    // Little endian, as every machine that runs a browser: A B G R.
    rgba[pixel] = 0xff000000 | (rgb[at + 2] << 16) | (rgb[at + 1] << 8) | rgb[at];
  }
  return image;
}

function picture(source, batch, index, count) {
  return {
    source,
    width: batch.width,
    height: batch.height,
    chunk: batch.chunk_index,
    requestId: batch.request_id,
    last: index === count - 1 && batch.is_final_frame_batch,
    eventId: batch.event_id ?? null,
    free: () => source?.close?.(),
  };
}
