// Rollouts side by side: the attempts of a group, the versions of a problem; and the list of problems.

const siblingsOf = (row) => page.rows.filter((other) => other.run === row.run && other.group === row.group);
const problemKey = (row) => (row.evaluated === null ? null : row.problem);

/** Evaluations of the same problem, by run and version. */
function versionsOfProblem(row) {
  if (row.evaluated === null) return [];
  return page.rows
    .filter((other) => problemKey(other) === row.problem)
    .sort((a, b) => a.run - b.run || a.evaluated - b.evaluated);
}

/** First, middle and last of a list. */
const threeOf = (list) =>
  list.length <= 3 ? list : [list[0], list[list.length >> 1], list[list.length - 1]];

function histogramNode(rows) {
  const values = rows.map((row) => row.reward).filter((value) => value !== null && value !== undefined);
  if (!values.length) return null;
  const low = Math.min(0, ...values),
    high = Math.max(low + 1e-9, low === 0 && Math.max(...values) <= 1 ? 1 : Math.max(...values));
  const bins = new Array(12).fill(0);
  for (const value of values) bins[Math.min(11, Math.floor((12 * (value - low)) / (high - low)))]++;
  const top = Math.max(...bins);
  return el(
    "div",
    { title: "rewards of the attempts" },
    el(
      "div.histogram",
      {},
      bins.map((n) =>
        el(n ? "i" : "i.zero", { style: { height: `${n ? 8 + (92 * n) / top : 2}%` }, title: `${n}` }),
      ),
    ),
    el("div.keys", {}, `rewards from ${number(low, 2)} to ${number(high, 2)}`),
  );
}

/** Rows of a table of several rollouts: one for each situation, in the order in which they first come. */
function aligned(rollouts) {
  const rows = new Map();
  rollouts.forEach((rollout, column) =>
    rollout.turns.forEach((turn, at) => {
      const kind = kindOf(turn, at);
      if (!rows.has(kind)) rows.set(kind, { kind, at, cells: rollouts.map(() => []) });
      const row = rows.get(kind);
      row.at = Math.min(row.at, at);
      row.cells[column].push({ turn, at });
    }),
  );
  return [...rows.values()].sort((a, b) => a.at - b.at);
}

function commonPrompt(row) {
  const prompts = row.cells.flat().map(({ turn }) => turn.prompt);
  if (!prompts.length) return null;
  let n = prompts[0].length;
  for (const prompt of prompts) {
    while (!prompt.startsWith(prompts[0].slice(0, n))) n--;
  }
  return { text: prompts[0].slice(0, n), all: prompts.every((prompt) => prompt.length === n) };
}

function gridView(heads, rollouts, scale) {
  const rows = aligned(rollouts),
    many = heads.length > 3,
    side = innerWidth < 860 ? "130px" : "220px";
  const columns =
    many || innerWidth < 860
      ? `repeat(${heads.length}, ${innerWidth < 860 ? 234 : 290}px)`
      : `repeat(${heads.length}, minmax(0, 1fr))`;
  const grid = el(many || innerWidth < 860 ? "div.grid.many" : "div.grid", {
    style: { gridTemplateColumns: `${side} ${columns}` },
  });
  grid.append(
    el("div.first.top", {}, el("span.dim", {}, "situation")),
    ...heads.map((head) => el("div.top", {}, ...head)),
  );
  for (const row of rows) {
    const prompt = commonPrompt(row),
      box = el(
        "div.text.prompt.fold",
        { style: { WebkitLineClamp: 6 } },
        prompt ? prompt.text.slice(-1200) : "",
      );
    grid.append(
      el(
        "div.first",
        {},
        el("b", {}, breakable(row.kind)),
        prompt && prompt.text
          ? el(
              "div",
              {},
              el(
                "div.label",
                {},
                prompt.all
                  ? "the same prompt"
                  : `prompts differ after ${count(prompt.text.length)} characters`,
              ),
              box,
            )
          : null,
      ),
    );
    for (const cell of row.cells) {
      grid.append(
        el(
          "div",
          {},
          cell.length
            ? cell.map(({ turn, at }) =>
                el(
                  "div.cell",
                  {},
                  el(
                    "div.cell-head",
                    {},
                    el("span", {}, `text ${at + 1}`),
                    figure("reward", number(turn.reward, 3)),
                    turn.adv === undefined
                      ? null
                      : figure(
                          "adv",
                          signed(turn.adv),
                          turn.adv > 0 ? "plus" : turn.adv < 0 ? "minus" : "",
                        ),
                    turn.masked ? el("span", {}, "masked") : null,
                  ),
                  tokensNode(turn, at, scale, 400),
                ),
              )
            : el("span.none", {}, "–"),
        ),
      );
    }
  }
  return el("div.side-by-side.wide", {}, grid);
}

function columnHead(row, title) {
  return [
    el("a", { href: `#${encodeURI(row.id)}`, className: "mono" }, title),
    el(
      "div.cell-head",
      {},
      figure("reward", number(row.reward, 3)),
      row.success === null || row.success === undefined
        ? null
        : el("span", { className: row.success ? "good" : "bad" }, row.success ? "success" : "no success"),
      el("span", {}, row.fate === "done" ? "" : row.fate + (row.reason ? `: ${row.reason}` : "")),
      row.badge ? el(`span.badge.${row.level || "info"}`, {}, row.badge) : null,
    ),
  ];
}

async function groupView(row) {
  const rows = siblingsOf(row),
    rollouts = await Promise.all(rows.map(rolloutOf));
  const turns = rollouts.flatMap((rollout) => rollout.turns);
  const rewards = new Set(turns.filter((turn) => !turn.masked).map((turn) => turn.reward));
  const filtered = rows.every((one) => one.reason === "zero_advantage");
  const hint =
    rewards.size === 1
      ? "No signal: every text of this group has the same reward."
      : filtered
        ? "No signal: every text has the mean reward of those it is compared with; the filter dropped it."
        : null;
  return [
    ...titleNode(row),
    el(
      "dl.facts",
      {},
      fact("attempts", String(rows.length)),
      fact("mean reward", number(rows.reduce((a, b) => a + (b.reward ?? 0), 0) / rows.length, 3)),
      rows.every((one) => one.success === null || one.success === undefined)
        ? null
        : fact("solved", `${rows.filter((one) => one.success).length} of ${rows.length}`),
      histogramNode(rows),
    ),
    hint ? el("p.hint", {}, hint) : null,
    colourTools(turns),
    gridView(
      rows.map((one) => columnHead(one, `attempt ${one.attempt}`)),
      rollouts,
      scaleOf(turns),
    ),
  ].filter(Boolean);
}

let allVersions = false;
async function versionsView(row) {
  const all = versionsOfProblem(row),
    runs = page.runs.map((_, run) => all.filter((one) => one.run === run));
  const rows = allVersions
    ? all
    : runs.flatMap((list) =>
        page.runs.length > 1
          ? [list[0], list.at(-1)].filter((one, i, both) => one && both.indexOf(one) === i)
          : threeOf(list),
      );
  const rollouts = await Promise.all(rows.map(rolloutOf)),
    turns = rollouts.flatMap((rollout) => rollout.turns);
  const [first, last] = endsOf(row.problem);
  const difference = first && last && first !== last ? last.reward - first.reward : null;
  const more =
    all.length > rows.length || allVersions
      ? el(
          "button.ghost",
          {
            onclick: () => {
              allVersions = !allVersions;
              show(row, "versions");
            },
          },
          allVersions ? "only some versions" : `all ${all.length} versions`,
        )
      : null;
  return [
    ...titleNode(row),
    el(
      "dl.facts",
      {},
      fact("problem", String(row.problem)),
      difference === null
        ? null
        : fact(
            page.runs.length > 1 ? "reward of B less that of A" : "reward, last less first",
            signed(difference),
            difference > 0 ? "good" : difference < 0 ? "bad" : "",
          ),
      more,
    ),
    colourTools(turns),
    gridView(
      rows.map((one) =>
        columnHead(
          one,
          `${page.runs.length > 1 ? `${page.runs[one.run].name}, ` : ""}version ${count(one.evaluated)}`,
        ),
      ),
      rollouts,
      scaleOf(turns),
    ),
  ].filter(Boolean);
}

let side = "rollouts";
const problemSort = { key: "difference", down: false };

/** The rollouts that a problem is judged by: first and last version, or the last one of both runs. */
function endsOf(problem) {
  const all = page.rows.filter((row) => problemKey(row) === problem);
  const last = (run) => all.filter((row) => row.run === run).sort((a, b) => a.evaluated - b.evaluated);
  return page.runs.length > 1 ? [last(0).at(-1), last(1).at(-1)] : [last(0)[0], last(0).at(-1)];
}

function problemsOf() {
  const numbers = [...new Set(page.rows.map(problemKey).filter((problem) => problem !== null))];
  return numbers.map((problem) => {
    const [first, last] = endsOf(problem);
    const known = first && last && first !== last && first.reward !== null && last.reward !== null;
    return {
      problem,
      first,
      last,
      before: first?.reward ?? null,
      after: last?.reward ?? null,
      difference: known ? last.reward - first.reward : null,
    };
  });
}

function drawProblems() {
  const { key, down } = problemSort,
    rows = problemsOf();
  rows.sort((a, b) => ((a[key] ?? 1e9) - (b[key] ?? 1e9)) * (down ? -1 : 1) || a.problem - b.problem);
  const titles =
    page.runs.length > 1 ? ["A, last version", "B, last version"] : ["first version", "last version"];
  const heads = [
    ["problem", "problem", ""],
    ["before", titles[0], ""],
    ["after", titles[1], ""],
    ["difference", "change", "right"],
    ["", "", ""],
  ];
  $("head").replaceChildren(
    ...heads.map(([field, title, classes]) =>
      el(
        "button",
        {
          className: classes,
          "aria-sort": key === field && field ? (down ? "descending" : "ascending") : null,
          onclick: () => {
            Object.assign(problemSort, {
              down: problemSort.key === field ? !problemSort.down : false,
              key: field,
            });
            drawProblems();
          },
        },
        title + (key === field && field ? (down ? " ↓" : " ↑") : ""),
      ),
    ),
  );
  const won = rows.filter((row) => row.difference > 0).length;
  const lost = rows.filter((row) => row.difference < 0).length;
  const alike = rows.filter((row) => row.difference === 0).length;
  $("found").textContent = `${plural(rows.length, "problem")}: ${won} won, ${lost} lost, ${alike} alike`;
  $("rows").style.height = "auto";
  $("rows").replaceChildren(
    ...rows.map((row, at) => {
      const target = row.last ?? row.first,
        state =
          row.difference > 0 ? "won" : row.difference < 0 ? "lost" : row.difference === 0 ? "alike" : "";
      return el(
        "div.row",
        {
          role: "option",
          id: `row-${at}`,
          style: { position: "relative" },
          "aria-selected": String(
            page.byId.get(current.id)?.problem === row.problem &&
              page.byId.get(current.id)?.evaluated !== null,
          ),
          onclick: () => go(target.id, "versions"),
        },
        el("span.mono", {}, String(row.problem)),
        el("span.reward", {}, el("span.num", {}, number(row.before, 3)), gauge(row.before)),
        el("span.reward", {}, el("span.num", {}, number(row.after, 3)), gauge(row.after)),
        el(
          "span",
          { className: `num right ${row.difference > 0 ? "good" : row.difference < 0 ? "bad" : "dim"}` },
          row.difference === null ? "–" : signed(row.difference),
        ),
        el("span.dim", {}, state),
      );
    }),
  );
}

function setSide(name) {
  side = name;
  $("side").classList.toggle("problems", name === "problems");
  $("filter").hidden = $("chips").hidden = name === "problems";
  showSideTabs();
  if (name === "problems") drawProblems();
  else sortRows();
}

function showSideTabs() {
  const problems = new Set(page.rows.map(problemKey).filter((problem) => problem !== null)).size;
  $("side-tabs").replaceChildren(
    ...[
      ["rollouts", "Rollouts"],
      ["problems", `Problems over versions`],
    ].map(([key, title]) =>
      el(
        "button",
        {
          role: "tab",
          "aria-selected": String(side === key),
          disabled: key === "problems" && !problems,
          onclick: () => setSide(key),
        },
        title,
      ),
    ),
  );
}
