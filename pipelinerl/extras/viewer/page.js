"use strict";
// What every part of the page uses: elements, numbers, data and their loading, and which rollout is shown. Texts
// enter by textContent alone: nothing that a model wrote is ever read as markup. Plain scripts, one after the
// other in one scope, because a page on a disk may not import modules.

const page = {
  runs: [],
  rows: [],
  shown: [],
  columns: {},
  groups: new Map(),
  chunks: new Map(),
  words: new Map(),
};
const $ = (id) => document.getElementById(id);

/** An element with properties and children; a string child becomes a text node. */
function el(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") Object.assign(node.style, value);
    else if (key in node && !key.startsWith("aria")) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(
    ...children.flat().filter((child) => child !== null && child !== undefined && child !== false),
  );
  return node;
}

const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
const signed = (value, digits = 3) =>
  value === null || value === undefined ? "–" : (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
const count = (value) => (value === null || value === undefined ? "–" : value.toLocaleString("en-US"));
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

page.index = (data) => {
  page.runs = data.runs;
  page.report = data.report;
  page.rows = data.rows.map((values, at) => {
    const row = { at };
    data.columns.forEach((column, i) => {
      row[column] = values[i];
    });
    row.name = `${row.group}/${row.attempt}`;
    row.id = (row.run ? `${row.run}:` : "") + row.name;
    row.split = row.evaluated === null ? "train" : "eval";
    row.tokens = row.prompt_tokens + row.output_tokens;
    return row;
  });
  page.byId = new Map(page.rows.map((row) => [row.id, row]));
  const rewards = page.rows.map((row) => row.reward).filter((r) => r !== null && r !== undefined);
  page.low = rewards.reduce((a, b) => Math.min(a, b), 0);
  page.high = rewards.reduce((a, b) => Math.max(a, b), page.low < 0 ? 0 : 1e-9);
  begin();
};

const waiting = new Map();
/** The groups of a chunk, loaded by a script tag, which works from a disk where fetch does not. */
function load(chunk) {
  if (!page.chunks.has(chunk)) {
    page.chunks.set(
      chunk,
      new Promise((resolve, reject) => {
        waiting.set(chunk, resolve);
        document.head.append(
          el("script", {
            src: `chunk_${chunk}.js`,
            onerror: () => reject(new Error(`chunk_${chunk}.js is missing`)),
          }),
        );
      }),
    );
  }
  return page.chunks.get(chunk);
}

page.chunk = (chunk, data) => {
  const vocabulary = new Map(data.vocabulary[0].map((id, i) => [id, data.vocabulary[1][i]]));
  for (const group of data.groups) {
    let first = null;
    for (const attempt of group.attempts) {
      let before = first ?? "";
      for (const turn of attempt.turns) {
        turn.texts = turn.pieces ?? turn.ids.map((id) => vocabulary.get(id));
        turn.output = turn.texts.join("");
        turn.shared = turn.prompt[0];
        turn.prompt = before.slice(0, turn.prompt[0]) + turn.prompt[1];
        before = turn.prompt + turn.output;
        first ??= before;
      }
      page.groups.set((group.run ? `${group.run}:` : "") + `${group.id}/${attempt.i}`, attempt);
    }
  }
  waiting.get(chunk)();
};

/** A rollout with its turns; null for one that ended without any. */
async function rolloutOf(row) {
  if (row.chunk < 0) return { i: row.attempt, turns: [], notes: [] };
  await load(row.chunk);
  return page.groups.get(row.id);
}

const current = { id: null, view: "rollout" };

/** `#group/attempt`, behind it `!group` or `!versions`; a second run's begins with `1:`. */
function go(id, view = "rollout") {
  const wanted = `#${encodeURI(id)}${view === "rollout" ? "" : `!${view}`}`;
  if (location.hash === wanted) route();
  else location.hash = wanted;
}

/* A hash that somebody cut is no URI any more; it is then shown as it stands. */
function readable(hash) {
  try {
    return decodeURI(hash);
  } catch {
    return hash;
  }
}

const VIEWS = ["rollout", "group", "versions"];

async function route() {
  const hash = readable(location.hash.slice(1));
  const at = page.byId.has(hash) ? -1 : hash.lastIndexOf("!");
  const [id, view] = at < 0 ? [hash, "rollout"] : [hash.slice(0, at), hash.slice(at + 1)];
  const row = page.byId.get(id);
  document.body.classList.toggle("reading", hash !== "");
  if (row && VIEWS.includes(view)) await show(row, view);
  else if (hash) showNone(hash);
  else if (page.shown.length && innerWidth > 860) show(page.shown[0], "rollout");
}

/** Of an address that names nothing here: no rollout is the current one, for keys and the list too. */
function showNone(hash) {
  Object.assign(current, { id: null, view: "rollout" });
  drawRows(true);
  delete $("detail").dataset.shown;
  $("token").replaceChildren();
  $("detail").replaceChildren(
    el("p.empty-page", {}, `${hash} is not among the rollouts of this page; `, el("a", { href: "#" }, "all rollouts")),
  );
}

async function show(row, view) {
  Object.assign(current, { id: row.id, view });
  const at = page.shown.indexOf(row);
  if (side !== "problems" && at >= 0) reveal(at);
  else drawRows(true);
  try {
    const node =
      view === "group"
        ? await groupView(row)
        : view === "versions"
          ? await versionsView(row)
          : await rolloutView(row);
    if (current.id !== row.id || current.view !== view) return;
    $("detail").replaceChildren(...node);
    $("detail").scrollTop = 0;
    $("detail").dataset.shown = row.id;
  } catch (error) {
    $("detail").replaceChildren(el("p.empty-page", {}, error.message));
  }
  $("token").replaceChildren("point at a token, or step through with ← and →");
}

function move(by) {
  const at = page.shown.findIndex((row) => row.id === current.id);
  const next = page.shown[Math.min(page.shown.length - 1, Math.max(0, at + by))];
  if (next) go(next.id, current.view);
}
