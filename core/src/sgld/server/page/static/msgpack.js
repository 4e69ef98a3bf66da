// MessagePack (msgpack.org, spec of 2013) for what the realtime protocol carries: null, booleans,
// numbers, text, bytes (Uint8Array), arrays and maps with text keys.

const MAX_DEPTH = 64;
const utf8 = new TextEncoder();
const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes that are no MessagePack, or a value that has no spelling in it. */
export class MsgpackError extends Error {
  name = "MsgpackError";
}

/**
 * @param {unknown} value plain data; `undefined` inside a map leaves the key out
 * @returns {Uint8Array<ArrayBuffer>}
 * @throws {MsgpackError} for functions, symbols, sparse arrays and integers beyond 64 bits
 */
export function encode(value) {
  const writer = new Writer();
  writer.value(value, 0);
  return writer.bytes();
}

/**
 * @param {ArrayBuffer | Uint8Array} data one value and nothing behind it
 * @returns {any} maps as objects without a prototype; integers beyond 2^53 as BigInt; bytes as views
 *   into `data`
 * @throws {MsgpackError}
 */
export function decode(data) {
  const bytes = data instanceof Uint8Array ? data : new Uint8Array(data);
  const reader = new Reader(bytes);
  const value = reader.value(0);
  if (reader.at !== bytes.length) throw new MsgpackError(`${bytes.length - reader.at} bytes too many`);
  return value;
}

class Writer {
  #buffer = new Uint8Array(256);
  #view = new DataView(this.#buffer.buffer);
  #at = 0;

  bytes() {
    return this.#buffer.slice(0, this.#at);
  }

  value(value, depth) {
    if (depth > MAX_DEPTH) throw new MsgpackError("nested too deeply");
    if (value === null || value === undefined) this.#byte(0xc0);
    else if (value === false) this.#byte(0xc2);
    else if (value === true) this.#byte(0xc3);
    else if (typeof value === "number") this.#number(value);
    else if (typeof value === "bigint") this.#integer(value);
    else if (typeof value === "string") this.#text(value);
    else if (value instanceof Uint8Array) this.#binary(value);
    else if (value instanceof ArrayBuffer) this.#binary(new Uint8Array(value));
    else if (Array.isArray(value)) this.#array(value, depth);
    else if (typeof value === "object") this.#map(value, depth);
    else throw new MsgpackError(`a ${typeof value} cannot be sent`);
  }

  #number(value) {
    if (Number.isInteger(value) && !Object.is(value, -0)) {
      if (value >= 0 && value < 0x80) return this.#byte(value);
      if (value < 0 && value >= -0x20) return this.#byte(value + 0x100);
      if (value >= 0 && value <= 0xffffffff) {
        if (value <= 0xff) return this.#head(0xcc, 1, value);
        return value <= 0xffff ? this.#head(0xcd, 2, value) : this.#head(0xce, 4, value);
      }
      if (Number.isSafeInteger(value)) return this.#integer(BigInt(value));
    }
    this.#room(9);
    this.#view.setUint8(this.#at, 0xcb);
    this.#view.setFloat64(this.#at + 1, value);
    this.#at += 9;
  }

  #integer(value) {
    if (value < -(2n ** 63n) || value >= 2n ** 64n) throw new MsgpackError("beyond 64 bits");
    this.#room(9);
    this.#view.setUint8(this.#at, value < 0n ? 0xd3 : 0xcf);
    this.#view.setBigUint64(this.#at + 1, BigInt.asUintN(64, value));
    this.#at += 9;
  }

  #text(value) {
    const bytes = utf8.encode(value);
    if (bytes.length < 32) this.#byte(0xa0 | bytes.length);
    else this.#sized(bytes.length, 0xd9, 0xda, 0xdb);
    this.#copy(bytes);
  }

  #binary(bytes) {
    this.#sized(bytes.length, 0xc4, 0xc5, 0xc6);
    this.#copy(bytes);
  }

  #array(items, depth) {
    if (items.length < 16) this.#byte(0x90 | items.length);
    else this.#sized(items.length, 0, 0xdc, 0xdd);
    for (let index = 0; index < items.length; index += 1) {
      if (!(index in items)) throw new MsgpackError("an array has a hole");
      this.value(items[index], depth + 1);
    }
  }

  #map(map, depth) {
    const entries = Object.entries(map).filter(([, value]) => value !== undefined);
    if (entries.length < 16) this.#byte(0x80 | entries.length);
    else this.#sized(entries.length, 0, 0xde, 0xdf);
    for (const [key, value] of entries) {
      this.#text(key);
      this.value(value, depth + 1);
    }
  }

  /** The head of something with a length; `one` is 0 where the format has no 8-bit length. */
  #sized(length, one, two, four) {
    if (one && length <= 0xff) this.#head(one, 1, length);
    else if (length <= 0xffff) this.#head(two, 2, length);
    else this.#head(four, 4, length);
  }

  #head(type, width, number) {
    this.#room(5);
    this.#view.setUint8(this.#at, type);
    if (width === 1) this.#view.setUint8(this.#at + 1, number);
    else if (width === 2) this.#view.setUint16(this.#at + 1, number);
    else this.#view.setUint32(this.#at + 1, number);
    this.#at += 1 + width;
  }

  #byte(value) {
    this.#room(1);
    this.#buffer[this.#at] = value;
    this.#at += 1;
  }

  #copy(bytes) {
    this.#room(bytes.length);
    this.#buffer.set(bytes, this.#at);
    this.#at += bytes.length;
  }

  #room(more) {
    if (this.#at + more <= this.#buffer.length) return;
    const larger = new Uint8Array(Math.max(this.#buffer.length * 2, this.#at + more));
    larger.set(this.#buffer.subarray(0, this.#at));
    this.#buffer = larger;
    this.#view = new DataView(larger.buffer);
  }
}

class Reader {
  at = 0;
  #bytes;
  #view;

  constructor(bytes) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  value(depth) {
    if (depth > MAX_DEPTH) throw new MsgpackError("nested too deeply");
    const type = this.#view.getUint8(this.#step(1));
    if (type < 0x80) return type;
    if (type >= 0xe0) return type - 0x100;
    if (type < 0x90) return this.#map(type & 0x0f, depth);
    if (type < 0xa0) return this.#array(type & 0x0f, depth);
    if (type < 0xc0) return this.#text(type & 0x1f);
    switch (type) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: return this.#raw(this.#length(1));
      case 0xc5: return this.#raw(this.#length(2));
      case 0xc6: return this.#raw(this.#length(4));
      case 0xca: return this.#view.getFloat32(this.#step(4));
      case 0xcb: return this.#view.getFloat64(this.#step(8));
      case 0xcc: return this.#length(1);
      case 0xcd: return this.#length(2);
      case 0xce: return this.#length(4);
      case 0xcf: return small(this.#view.getBigUint64(this.#step(8)));
      case 0xd0: return this.#view.getInt8(this.#step(1));
      case 0xd1: return this.#view.getInt16(this.#step(2));
      case 0xd2: return this.#view.getInt32(this.#step(4));
      case 0xd3: return small(this.#view.getBigInt64(this.#step(8)));
      case 0xd9: return this.#text(this.#length(1));
      case 0xda: return this.#text(this.#length(2));
      case 0xdb: return this.#text(this.#length(4));
      case 0xdc: return this.#array(this.#length(2), depth);
      case 0xdd: return this.#array(this.#length(4), depth);
      case 0xde: return this.#map(this.#length(2), depth);
      case 0xdf: return this.#map(this.#length(4), depth);
      default: throw new MsgpackError(`byte 0x${type.toString(16)} begins nothing that is known here`);
    }
  }

  #length(width) {
    const at = this.#step(width);
    if (width === 1) return this.#view.getUint8(at);
    return width === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
  }

  #raw(length) {
    const at = this.#step(length);
    return this.#bytes.subarray(at, at + length);
  }

  #text(length) {
    try {
      return text.decode(this.#raw(length));
    } catch (error) {
      if (error instanceof MsgpackError) throw error;
      throw new MsgpackError("text that is not UTF-8");
    }
  }

  #array(length, depth) {
    this.#holds(length);
    return Array.from({ length }, () => this.value(depth + 1));
  }

  #map(length, depth) {
    this.#holds(2 * length);
    const map = Object.create(null);
    for (let index = 0; index < length; index += 1) {
      const key = this.value(depth + 1);
      if (typeof key !== "string") throw new MsgpackError("a map's key must be text");
      map[key] = this.value(depth + 1);
    }
    return map;
  }

  /** Refuses a length that the rest cannot hold, before anything of that size is made. */
  #holds(values) {
    if (values > this.#bytes.length - this.at) throw new MsgpackError("cut off");
  }

  #step(count) {
    const at = this.at;
    if (count > this.#bytes.length - at) throw new MsgpackError("cut off");
    this.at = at + count;
    return at;
  }
}

function small(value) {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}
