// The page: puts session, player, controls, figures and form together.

import { Controls } from "./controls.js";
import { Decoder } from "./decoders.js";
import { bytes, Figures } from "./figures.js";
import { History } from "./history.js";
import { Pace } from "./pace.js";
import { Player } from "./player.js";
import { apiKey, KeyWanted, modelFacts, realtimeAddress } from "./server.js";
import { Session } from "./session.js";
import { Setup } from "./setup.js";

const BOOKMARK = "sgld.session";
const STATES = {
  idle: "not started",
  connecting: "connecting",
  live: "live",
  reconnecting: "connection lost, coming back",
  ended: "ended",
};

const one = (id) => document.getElementById(id);
const screen = one("screen");
const canvas = one("canvas");
const player = new Player(canvas);
const pace = new Pace(taken);
const decoder = new Decoder({ onPicture: arrived, onError: trouble });
const figures = new Figures(one("figures"));
const setup = new Setup(one("setup"));
const history = new History(one("history"), goBack);
const controls = new Controls({ pads: one("pads"), onChange: steer });

let session = null;
let paused = false;
let rewinding = false;
/** The actions that the server holds. */
let told = [];

// Steering

function steer(actions, ms) {
  const payload = { mode: "state", transitions: [{ actions, client_ts_ms: ms }] };
  const number = session?.event("camera_actions", payload) ?? 0;
  if (!number) return;
  told = actions;
  bookmark();
  if (actions.length) figures.sent(number, ms - performance.timeOrigin);
}

one("steer").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = one("steer-text");
  const text = field.value.trim();
  if (!text) return;
  const answer = await attempt(session.wish("event", { kind: "prompt", payload: text }));
  if (!answer) return;
  field.value = "";
  notice(`“${text}” from chunk ${answer.chunk_index} on.`);
});

one("pause").addEventListener("click", async () => {
  const stop = !paused;
  player.frozen = stop;
  if (await attempt(session.wish(stop ? "pause" : "resume"))) setPaused(stop);
  else player.frozen = paused;
});

one("rewind").addEventListener("click", () => {
  goBack(Number(canvas.dataset.chunk) - (one("rewind-count").valueAsNumber || 1));
});

one("reset").addEventListener("click", async () => {
  if (await attempt(session.wish("reset"))) restart(-1);
});

one("fork").addEventListener("click", async () => {
  // Opened now: a browser lets a click open a tab, not an answer that comes later.
  const tab = window.open("about:blank", "_blank");
  const answer = await attempt(session.wish("fork"));
  if (!answer) {
    tab?.close();
    return;
  }
  const there = new URL(document.baseURI);
  const { number } = session.bookmark;
  const more = { number, held: told.join(""), paused: paused ? "yes" : "" };
  there.hash = new URLSearchParams({ take: answer.resume_token, ...more }).toString();
  if (tab) tab.location = there.href;
  else notice("The browser keeps the new tab shut; open it here:", there.href);
});

one("end").addEventListener("click", () => session.end());

for (const id of ["capture", "frame-screen"]) {
  one(id).addEventListener("click", async () => {
    await setup.takeCanvas(canvas);
    notice("This picture is the first frame of the next world.");
  });
}

/** Go on behind the end of chunk `seen`, however far the server is ahead of the screen. */
async function goBack(seen) {
  if (rewinding) return;
  rewinding = true;
  let next = session.newest + 1;
  // The server may begin to send a chunk while the wish is on its way, and count from there.
  for (let tries = 0; tries < 3 && next > seen + 1; tries += 1) {
    const answer = await attempt(session.wish("rewind", { chunks: next - seen - 1 }));
    if (!answer) break;
    next = answer.chunk_index;
    restart(next - 1);
  }
  rewinding = false;
}

/** The session goes on behind chunk `chunk`; what waits is from a future that is not to be. */
function restart(chunk) {
  decoder.reset();
  // Of what was not shown yet, the server still waits for an answer about the chunks that stay.
  for (const { last, chunk: index, requestId } of player.clear()) {
    if (last && index <= chunk) taken(requestId);
  }
  pace.flush();
  session.newest = chunk;
  const seen = history.back(chunk);
  if (seen) player.show(seen, canvas.width, canvas.height);
  notice(chunk < 0 ? "Back at the beginning." : `Going on behind chunk ${chunk}.`);
}

// A session's life

one("setup").addEventListener("submit", (event) => {
  event.preventDefault();
  const init = setup.read();
  if (init) open().start(init);
});

function open() {
  session?.end();
  silence();
  decoder.reset();
  player.clear();
  figures.clear();
  history.clear();
  document.body.dataset.shown = "false";
  document.body.dataset.figures = "true";
  setPaused(false);
  told = [];
  const fresh = new Session(realtimeAddress(), apiKey.get());
  session = fresh;
  const on = (name, act) => fresh.addEventListener(name, ({ detail }) => fresh === session && act(detail));
  on("state", become);
  on("session", opened);
  on("batch", received);
  on("stats", (stats) => figures.chunk(stats));
  on("notice", notice);
  on("round", (ms) => figures.set("round", `${ms.toFixed(1)} ms`));
  on("problem", refused);
  on("ended", ended);
  return fresh;
}

function opened(facts) {
  player.fps = facts.fps;
  if (facts.resumed && history.newest >= 0) pace.disturbed();
  else pace.open({ justInTime: facts.queue_chunks === 1, fps: facts.fps, pictures: facts.chunk_frames });
  figures.set("bytes", bytes(facts.session_bytes));
  if (paused) one("veil").textContent = "Paused.";
  if (facts.warnings.length) notice(facts.warnings.join(" "));
  // Those that wait here, unseen, have to be taken back as well.
  const keep = Math.max(0, facts.rewind_chunks - Math.max(1, facts.queue_chunks - 1));
  // What was held when the connection was lost is held no more.
  if (facts.resumed && told.length) steer([], Date.now());
  if (!facts.resumed || history.newest < 0) history.open(keep);
  one("rewind-count").max = String(Math.max(1, keep));
  screen.style.setProperty("--aspect", `${facts.width} / ${facts.height}`);
}

function received(batch) {
  decoder.push(batch);
  // A chunk without pictures is never shown.
  if (batch.is_final_frame_batch && !batch.num_frames) taken(batch.request_id);
}

function arrived(picture) {
  player.add(picture);
  if (picture.last) pace.arrived(picture.requestId, player.waiting);
}

player.addEventListener("shown", ({ detail: picture }) => {
  canvas.dataset.pictures = String(Number(canvas.dataset.pictures ?? 0) + 1);
  canvas.dataset.chunk = String(picture.chunk);
  canvas.dataset.last = String(picture.last);
  canvas.dataset.eventId = picture.eventId === null ? "" : String(picture.eventId);
  document.body.dataset.shown = "true";
  figures.shown(picture);
  figures.set("queue", String(player.waiting));
  pace.waits(player.waiting);
  enable();
});

player.addEventListener("chunkshown", ({ detail: picture }) => {
  pace.shown(picture.requestId);
  if (picture.chunk > history.newest) history.add(picture.chunk, canvas);
});

function taken(requestId) {
  session.taken(requestId);
  bookmark();
}

function refused(error) {
  if (error.field && setup.knows(error.field) && session.state !== "live") setup.blame(error.field, error.message);
  else trouble(error);
}

function ended({ reason }) {
  sessionStorage.removeItem(BOOKMARK);
  one("veil").textContent = reason;
}

function become(state) {
  document.body.dataset.state = state;
  one("state").textContent = STATES[state];
  if (state === "connecting") one("veil").textContent = "Waiting for the first picture…";
  if (state === "reconnecting") one("veil").textContent = "The connection was lost; trying again…";
  if (state === "live" || state === "ended") one("world").open = state === "ended";
  if (state !== "live") controls.release(performance.now());
  enable();
}

function enable() {
  const live = session?.state === "live";
  const kinds = session?.facts?.events ?? [];
  const shown = document.body.dataset.shown === "true";
  controls.enabled = live && kinds.includes("camera_actions");
  for (const id of ["steer-text", "steer-send"]) one(id).disabled = !(live && kinds.includes("prompt"));
  for (const id of ["pause", "fork", "reset"]) one(id).disabled = !live;
  const back = live && (session.facts.rewind_chunks ?? 0) > 0 && shown;
  for (const id of ["rewind", "rewind-count"]) one(id).disabled = !back;
  one("end").disabled = !live && session?.state !== "reconnecting" && session?.state !== "connecting";
  one("capture").disabled = one("frame-screen").disabled = !shown;
  one("start").textContent = live ? "Start anew" : "Start";
}

function setPaused(value) {
  paused = value;
  pace.disturbed();
  player.frozen = value;
  document.body.dataset.paused = String(value);
  one("pause").setAttribute("aria-pressed", String(value));
  one("pause").querySelector("span").textContent = value ? "Resume" : "Pause";
  bookmark();
}

/** Remembered so that a page that is loaded again takes its session up. */
function bookmark() {
  const mark = session?.bookmark;
  if (!mark || session.state === "ended") return;
  sessionStorage.setItem(BOOKMARK, JSON.stringify({ ...mark, held: told, paused }));
}

// Words

function trouble(error) {
  one("problem").textContent = error.message;
  one("problem").hidden = false;
}

function notice(text, link = "") {
  const place = one("notice");
  place.textContent = text;
  if (link) {
    const anchor = document.createElement("a");
    Object.assign(anchor, { href: link, target: "_blank", textContent: "the fork" });
    place.append(" ", anchor);
  }
  place.hidden = false;
}

function silence() {
  one("problem").hidden = one("notice").hidden = true;
}

/** The answer, or null after showing why there is none. */
async function attempt(wish) {
  one("problem").hidden = true;
  try {
    return await wish;
  } catch (error) {
    trouble(error);
    return null;
  }
}

// Pictures that are dropped or pasted

addEventListener("dragover", (event) => {
  event.preventDefault();
  screen.classList.add("dropping");
});
addEventListener("dragleave", (event) => {
  if (!event.relatedTarget) screen.classList.remove("dropping");
});
addEventListener("drop", (event) => {
  event.preventDefault();
  screen.classList.remove("dropping");
  const [file] = event.dataTransfer.files;
  if (file) setup.takeFile(file);
});
addEventListener("paste", ({ clipboardData }) => {
  const [file] = clipboardData.files;
  if (file) setup.takeFile(file);
});

// The beginning

one("key-open").addEventListener("click", () => askKey(""));
one("key-cancel").addEventListener("click", () => one("key-dialog").close(""));
one("key-dialog").addEventListener("close", () => {
  const dialog = one("key-dialog");
  if (dialog.returnValue !== "save") return;
  apiKey.set(one("key").value.trim());
  begin();
});

function askKey(why) {
  one("key").value = apiKey.get();
  one("key-fault").textContent = why;
  one("key-dialog").returnValue = "";
  if (!one("key-dialog").open) one("key-dialog").showModal();
}

async function begin() {
  try {
    const facts = await modelFacts();
    one("model").textContent = facts.id;
    document.title = `${facts.id} · sgld`;
    await setup.offer(facts);
    one("start").disabled = false;
    silence();
  } catch (error) {
    one("start").disabled = true;
    if (error instanceof KeyWanted) askKey(apiKey.get() ? error.message : "");
    else trouble(error);
    return;
  }
  takeUp();
}

/** Continue the session of this tab, or the fork that the address names. */
function takeUp() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const kept = JSON.parse(sessionStorage.getItem(BOOKMARK) ?? "null");
  sessionStorage.removeItem(BOOKMARK);
  if (wanted.has("take")) {
    // The token opens the session: it does not stay in the address.
    window.history.replaceState(null, "", location.pathname + location.search);
    open().resume(wanted.get("take"), null, Number(wanted.get("number")));
    told = [...wanted.get("held")];
    setPaused(Boolean(wanted.get("paused")));
  } else if (kept && !session) {
    open().resume(kept.token, kept.taken, kept.number);
    told = kept.held;
    setPaused(kept.paused);
  }
}

begin();
