// One realtime session over a WebSocket: protocol 2, with acknowledgements and reconnection.

import { decode, encode } from "./msgpack.js";

const RETRY_MS = [200, 500, 1000, 2000, 4000];
const PING_MS = 10_000;
const NORMAL = 1000;
/** A session that failed, with a code as reason; or a proxy or server without one, which may be passing. */
const FAULT = 1011;
/** The server closes with these when coming back makes no sense: ended, refused, too large, stopping. */
const FINAL = new Set([NORMAL, 1002, 1003, 1007, 1008, 1009, 1012]);
/** What a subprotocol may be made of (RFC 9110, token). */
const TOKEN = /^[\w!#$%&'*+.^`|~-]+$/;

/** What the server refused, in its words. */
export class Refusal extends Error {
  name = "Refusal";

  /** @param {{message?: string, content?: string, code?: string, field?: string}} message */
  constructor(message) {
    super(message.message || message.content || "The server refused this without a reason.");
    this.code = message.code ?? "";
    this.field = message.field ?? "";
  }
}

/**
 * Events: `state` (detail: connecting, live, reconnecting, ended), `session`, `batch`, `stats`,
 * `notice` (text), `problem` (Error), `ended` ({reason}), `round` (milliseconds of a ping).
 */
export class Session extends EventTarget {
  state = "idle";
  /** The server's `session` message. */
  facts = null;
  /** Index of the newest chunk of which something has come. */
  newest = -1;
  #url;
  #socket = null;
  #protocols;
  #hello = null;
  #header = null;
  #number = 0;
  #wishes = new Map();
  #received = { id: null, pictures: 0, whole: null };
  #taken = null;
  #attempt = 0;
  #lostAt = 0;
  #timer = 0;
  #pinging = 0;
  #leaving = false;

  /**
   * @param {URL} url `ws:` or `wss:`
   * @param {string} key API key, or an empty text
   */
  constructor(url, key) {
    super();
    this.#url = new URL(url);
    // A browser sets no headers on a WebSocket; a subprotocol shows up in fewer logs than a query.
    this.#protocols = key && TOKEN.test(key) ? ["sgld", `sgld.api-key.${key}`] : [];
    if (key && !this.#protocols.length) this.#url.searchParams.set("api_key", key);
  }

  /** Begin a session; `init` without type and protocol. */
  start(init) {
    this.#hello = { type: "init", protocol: 2, acknowledge: true, ...init };
    this.#connect();
  }

  /** Take up a session by its token, behind the chunk `taken` (its request id), or from the first
   * one that the server still has. `number` is that of the last message with one. */
  resume(token, taken, number) {
    this.#taken = this.#received.whole = taken;
    this.#number = number;
    this.#hello = this.#resumption(token);
    this.#connect();
  }

  /** How to take it up from elsewhere, behind what was shown here; null before it is open. */
  get bookmark() {
    const token = this.facts?.resume_token;
    return token ? { token, taken: this.#taken, number: this.#number } : null;
  }

  /** Send a control event; returns its number, or 0 while nothing can be sent. */
  event(kind, payload) {
    if (this.state !== "live") return 0;
    this.#number += 1;
    this.#send({ type: "event", kind, payload, event_id: this.#number });
    return this.#number;
  }

  /** Ask for something; resolves with the acknowledgement, rejects with a `Refusal`. */
  wish(type, fields = {}) {
    if (this.state !== "live") return Promise.reject(new Error("There is no connection now."));
    this.#number += 1;
    const number = this.#number;
    const answer = new Promise((resolve, reject) => this.#wishes.set(number, { type, resolve, reject }));
    this.#send({ type, event_id: number, ...fields });
    return answer;
  }

  /** A chunk was shown: the server may forget it, and make another. */
  taken(requestId) {
    this.#taken = requestId;
    if (this.state === "live") this.#send({ type: "received", request_id: requestId });
  }

  /** End the session here and on the server. */
  end() {
    this.#leaving = true;
    clearTimeout(this.#timer);
    if (this.#socket?.readyState === WebSocket.OPEN) {
      this.#send({ type: "close" });
      this.#socket.close(NORMAL);
    } else {
      this.#socket?.close();
    }
    this.#finish("You ended it.");
  }

  #resumption(token) {
    return { type: "init", protocol: 2, resume_token: token, last_request_id: this.#received.whole };
  }

  #connect() {
    this.#become(this.#attempt ? "reconnecting" : "connecting");
    const socket = new WebSocket(this.#url, this.#protocols);
    this.#socket = socket;
    this.#header = null;
    socket.binaryType = "arraybuffer";
    socket.onopen = () => this.#send(this.#hello);
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code, reason }) => {
      if (socket === this.#socket) this.#closed(code, reason);
    };
  }

  #send(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(encode(message));
  }

  #receive(data) {
    if (this.#header) {
      const batch = { ...this.#header, payload: new Uint8Array(data) };
      this.#header = null;
      this.#batch(batch);
      return;
    }
    let message;
    try {
      message = decode(data);
    } catch (error) {
      this.#tell("problem", new Error(`The server sent what is no message: ${error.message}.`));
      return;
    }
    if (message.type === "frame_batch_header") this.#header = message;
    else if (message.type === "frame_batch") this.#batch(message);
    else if (message.type === "chunk_stats") this.#tell("stats", message);
    else if (message.type === "session") this.#opened(message);
    else if (message.type === "ack" || message.type === "forked") this.#acknowledged(message);
    else if (message.type === "error") this.#refused(message);
    else if (message.type === "pong") this.#tell("round", performance.now() - this.#pinging);
    else if (message.type === "waiting") this.#tell("notice", message.message);
  }

  #batch(batch) {
    const got = this.#received;
    // After a reconnection a chunk that was cut off comes again from its beginning.
    const again = batch.frame_batch_index === 0 && batch.request_id === got.id ? got.pictures : 0;
    if (batch.frame_batch_index === 0) Object.assign(got, { id: batch.request_id, pictures: 0, again });
    batch.seen = Math.max(0, got.again - got.pictures);
    got.pictures += batch.num_frames;
    if (batch.is_final_frame_batch) got.whole = batch.request_id;
    this.newest = batch.chunk_index;
    this.#tell("batch", batch);
  }

  #opened(message) {
    this.facts = message;
    this.#attempt = 0;
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.#ping(), PING_MS);
    this.#become("live");
    // The last one may have been lost with the connection before.
    if (this.#taken) this.taken(this.#taken);
    this.#tell("session", message);
    this.#ping();
  }

  #ping() {
    this.#pinging = performance.now();
    this.#send({ type: "ping" });
  }

  #acknowledged(message) {
    const wish = this.#wishes.get(message.event_id);
    this.#wishes.delete(message.event_id);
    wish?.resolve(message);
  }

  #refused(message) {
    const refusal = new Refusal(message);
    const wish = this.#wishes.get(message.event_id);
    this.#wishes.delete(message.event_id);
    if (wish) {
      wish.reject(refusal);
      return;
    }
    if (refusal.code === "resume_gap" && this.#hello.last_request_id) {
      // Something is missing: better a jump than the end.
      this.#hello.last_request_id = null;
      this.#send(this.#hello);
      return;
    }
    this.#tell("problem", refusal);
    if (this.state === "connecting" || this.state === "reconnecting") {
      // The server would wait for another init; here the form is filled in again first.
      this.#leaving = true;
      this.#socket.close(NORMAL);
      this.#finish(refusal.message);
    }
  }

  #closed(code, reason) {
    clearInterval(this.#timer);
    for (const { reject } of this.#wishes.values()) reject(new Error("The connection was lost."));
    this.#wishes.clear();
    if (this.#leaving || this.state === "ended") return;
    const token = this.facts?.resume_token;
    if (!token || FINAL.has(code) || (code === FAULT && /^[a-z_]+$/.test(reason))) {
      this.#finish(sentence(code, reason, Boolean(this.facts)));
      return;
    }
    this.#retry(token);
  }

  #retry(token) {
    if (!this.#attempt) this.#lostAt = performance.now();
    const grace = (this.facts.grace_seconds ?? 0) * 1000;
    if (performance.now() - this.#lostAt > grace) {
      this.#finish("The connection was lost for longer than the server keeps a session.");
      return;
    }
    const wait = RETRY_MS[Math.min(this.#attempt, RETRY_MS.length - 1)];
    this.#attempt += 1;
    this.#hello = this.#resumption(token);
    this.#become("reconnecting");
    this.#timer = setTimeout(() => this.#connect(), wait);
  }

  #finish(reason) {
    if (this.state === "ended") return;
    clearInterval(this.#timer);
    this.#become("ended");
    this.#tell("ended", { reason });
  }

  #become(state) {
    if (state === this.state) return;
    this.state = state;
    this.#tell("state", state);
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

function sentence(code, reason, opened) {
  if (code === NORMAL) return reason ? `The server ended it: ${reason}.` : "The server ended it.";
  if (reason) return `The server closed the connection: ${reason} (${code}).`;
  if (!opened) return "No connection to the server: is it running, and is the API key right?";
  return `The connection was closed (${code}).`;
}
