// The list of rollouts: its filter, its order and its rows.

const FIELDS = {
  reward: (r) => r.reward,
  success: (r) => r.success,
  v: (r) => r.version,
  version: (r) => r.version,
  turns: (r) => r.turns,
  tokens: (r) => r.tokens,
  output: (r) => r.output_tokens,
  advantage: (r) => r.advantage,
  step: (r) => r.step,
  problem: (r) => r.problem,
  question: (r) => r.question,
  attempt: (r) => r.attempt,
  seconds: (r) => r.seconds,
  retries: (r) => r.retries,
  run: (r) => page.runs[r.run].name,
  split: (r) => r.split,
  fate: (r) => r.fate,
  reason: (r) => r.reason,
  domain: (r) => r.dataset,
  dataset: (r) => r.dataset,
  group: (r) => r.group,
  leak: (r) => r.badge,
  badge: (r) => r.badge,
};
const COMPARE = {
  "<": (a, b) => a < b,
  "<=": (a, b) => a <= b,
  ">": (a, b) => a > b,
  ">=": (a, b) => a >= b,
  "=": (a, b) => a === b,
};

/** Tests of rows, and words that are looked for in texts. Throws an Error with what is wrong. */
function parseFilter(text) {
  const tests = [],
    words = [];
  for (const [, minus, quoted, plain] of text.matchAll(/(-?)(?:"([^"]*)"?|(\S+))/g)) {
    const compared = quoted === undefined && /^([a-z]+)(<=|>=|<|>|=)(.*)$/i.exec(plain);
    const named = quoted === undefined && /^([a-z]+):(.*)$/i.exec(plain);
    const field = (compared || named || [])[1];
    let test;
    if (field) {
      const get = FIELDS[field.toLowerCase()];
      if (!get) throw new Error(`${field} is no field; there are ${Object.keys(FIELDS).join(", ")}`);
      if (compared) {
        const wanted = Number(compared[3]);
        if (compared[3] === "" || Number.isNaN(wanted))
          throw new Error(`${plain}: compare ${field} with a number`);
        test = (row) => typeof get(row) === "number" && COMPARE[compared[2]](get(row), wanted);
      } else {
        const wanted = named[2].toLowerCase();
        test = (row) =>
          String(get(row) ?? "")
            .toLowerCase()
            .includes(wanted);
      }
      tests.push(minus ? (row) => !test(row) : test);
    } else if ((quoted ?? plain) !== "") words.push([(quoted ?? plain).toLowerCase(), Boolean(minus)]);
  }
  return { tests, words };
}

/** Lower-case texts of a rollout, made when its chunk was first searched. */
function wordsOf(row) {
  if (!page.words.has(row.id)) {
    const rollout = page.groups.get(row.id);
    const texts = rollout
      ? rollout.turns.flatMap((turn) => [turn.prompt.slice(turn.shared), turn.output])
      : [];
    const notes = rollout ? rollout.notes.map((note) => note.text) : [];
    if (rollout && rollout.turns.length) texts.unshift(rollout.turns[0].prompt);
    page.words.set(row.id, [row.name, ...texts, ...notes].join("\n").toLowerCase());
  }
  return page.words.get(row.id);
}

let filtering = 0;
async function applyFilter() {
  const turn = ++filtering,
    found = $("found");
  found.className = "";
  let wanted;
  try {
    wanted = parseFilter($("filter").value);
  } catch (error) {
    found.textContent = error.message;
    found.className = "error";
    return;
  }
  let rows = page.rows.filter((row) => wanted.tests.every((test) => test(row)));
  if (wanted.words.length) {
    const chunks = [...new Set(rows.map((row) => row.chunk))].filter((chunk) => chunk >= 0);
    for (let done = 0; done < chunks.length; done += 8) {
      await Promise.all(chunks.slice(done, done + 8).map(load));
      if (turn !== filtering) return;
      found.textContent = `reading ${Math.min(done + 8, chunks.length)} of ${chunks.length} files`;
    }
    rows = rows.filter((row) =>
      wanted.words.every(([word, minus]) => wordsOf(row).includes(word) !== minus),
    );
  }
  if (turn !== filtering) return;
  page.filtered = rows;
  sortRows();
  showChips();
}

const HEADS = [
  ["name", "rollout", ""],
  ["version", "version", "right"],
  ["reward", "reward", ""],
  ["success", "✓", "mid"],
  ["turns", "turns", "right extra"],
  ["tokens", "tokens", "right extra"],
  ["advantage", "adv", "right extra"],
  ["fate", "fate", ""],
];
const sorting = { key: null, down: true };

function sortRows() {
  const rows = [...page.filtered],
    { key, down } = sorting;
  if (key) {
    const side = down ? -1 : 1;
    rows.sort((a, b) => {
      const [x, y] = [a[key], b[key]];
      if (x === y) return a.at - b.at;
      if (x === null || x === undefined) return 1;
      if (y === null || y === undefined) return -1;
      return (x < y ? -1 : 1) * side;
    });
  }
  page.shown = rows;
  const rewards = rows.map((row) => row.reward).filter((r) => r !== null && r !== undefined);
  const mean = rewards.reduce((a, b) => a + b, 0) / rewards.length;
  const of = rows.length === page.rows.length ? "" : ` of ${count(page.rows.length)}`;
  $("found").textContent =
    `${plural(rows.length, "rollout")}${of}` +
    (rewards.length ? `, mean reward ${number(mean, 3)}` : "");
  showHead();
  $("list").scrollTop = 0;
  drawRows(true);
}

function showHead() {
  if (side === "problems") return;
  $("head").replaceChildren(
    ...HEADS.map(([key, title, classes]) =>
      el(
        "button",
        {
          className: classes,
          title: `sort by ${key === "success" ? key : title}`,
          "aria-sort": sorting.key === key ? (sorting.down ? "descending" : "ascending") : null,
          onclick: () => {
            if (sorting.key === key && !sorting.down) sorting.key = null;
            else {
              sorting.down = sorting.key !== key;
              sorting.key = key;
            }
            sortRows();
          },
        },
        title + (sorting.key === key ? (sorting.down ? " ↓" : " ↑") : ""),
      ),
    ),
  );
}

const PRESETS = [
  ["training", "split:train"],
  ["evaluation", "split:eval"],
  ["failed", "fate:failed"],
  ["filtered", "fate:filtered"],
  ["stale", "fate:stale"],
];

function showChips() {
  const badges = [...new Set(page.rows.map((row) => row.badge).filter(Boolean))]
    .slice(0, 6)
    .map((badge) => [badge, `badge:${badge.split(" ")[0]}`]);
  const some = [...PRESETS, ...badges].filter(([, filter]) => {
    const n = page.rows.filter(parseFilter(filter).tests[0]).length;
    return n && n < page.rows.length;
  });
  const parts = $("filter").value.split(/\s+/).filter(Boolean);
  $("chips").replaceChildren(
    ...some.map(([title, filter]) =>
      el(
        "button.chip",
        {
          "aria-pressed": String(parts.includes(filter)),
          title: filter,
          onclick: () => {
            const field = filter.split(":")[0] + ":";
            const others = parts.filter((part) => !part.startsWith(field));
            $("filter").value = (parts.includes(filter) ? others : [...others, filter]).join(" ");
            applyFilter();
          },
        },
        title,
      ),
    ),
  );
}

function gauge(value) {
  if (value === null || value === undefined) return el("span.gauge");
  const span = page.high - page.low || 1,
    at = (x) => (100 * (x - page.low)) / span;
  const [from, to] = value < 0 ? [at(value), at(0)] : [at(Math.max(0, page.low)), at(value)];
  return el(
    "span.gauge",
    {},
    el(value < 0 ? "i.below" : "i", { style: { left: `${from}%`, width: `${Math.max(0, to - from)}%` } }),
  );
}

function rowNode(row, at) {
  const selected = row.id === current.id;
  const fate = row.fate === "done" ? "evaluated" : row.reason ? `${row.fate}: ${row.reason}` : row.fate;
  const known = row.success !== null && row.success !== undefined;
  return el(
    "div.row",
    {
      role: "option",
      id: `row-${at}`,
      "aria-selected": String(selected),
      style: { top: `calc(var(--row) * ${at})` },
      title: [row.dataset, row.reason, row.success === null ? "" : row.success ? "success" : "no success"]
        .filter(Boolean)
        .join(", "),
      onclick: () => go(row.id),
    },
    el("span.mono", {}, (page.runs.length > 1 ? `${row.run ? "B" : "A"} ` : "") + row.name),
    el("span.num.right", {}, count(row.version)),
    el("span.reward", {}, el("span.num", {}, number(row.reward, 3)), gauge(row.reward)),
    el(
      `span.mid${known ? (row.success ? ".good" : ".bad") : ".dim"}`,
      { "aria-label": known ? (row.success ? "success" : "no success") : null },
      known ? (row.success ? "✓" : "✗") : "–",
    ),
    el("span.num.right.extra", {}, String(row.turns)),
    el("span.num.right.extra", {}, count(row.tokens)),
    el(
      "span.num.right.extra",
      {},
      row.advantage === null || row.advantage === undefined ? "" : signed(row.advantage, 2),
    ),
    el("span.fate", {}, el(`span.dot.${row.fate}`), el("span", {}, fate)),
    el("span.asked", { title: row.question }, row.question),
    row.badge ? el("span.badge" + (row.level ? `.${row.level}` : ""), {}, row.badge) : null,
  );
}

const drawn = { from: -1, to: -1 };
/** Only the rows in sight are nodes: a list of thousands scrolls as fast as a short one. */
function drawRows(anew = false) {
  if (side === "problems") return drawProblems();
  const list = $("list"),
    height = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) || 30;
  const from = Math.max(0, Math.floor(list.scrollTop / height) - 10);
  const to = Math.min(page.shown.length, from + Math.ceil(list.clientHeight / height) + 20);
  if (!anew && from === drawn.from && to === drawn.to) return undefined;
  Object.assign(drawn, { from, to });
  $("rows").style.height = `${page.shown.length * height}px`;
  $("rows").replaceChildren(...page.shown.slice(from, to).map((row, i) => rowNode(row, from + i)));
  return undefined;
}

function reveal(at) {
  const list = $("list"),
    height = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) || 30;
  if (at * height < list.scrollTop) list.scrollTop = at * height;
  else if ((at + 1) * height > list.scrollTop + list.clientHeight)
    list.scrollTop = (at + 1) * height - list.clientHeight;
  list.setAttribute("aria-activedescendant", `row-${at}`);
  drawRows(true);
}
