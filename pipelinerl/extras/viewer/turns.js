// One rollout: what it earned, and each of its texts.

/** The prompt: what it has in common with the text before is folded, long ones are cut after twelve lines. */
function promptNode(turn, first) {
  // Cut at the end of a line, so that what is new can be read by itself.
  const shared = first ? 0 : turn.prompt.lastIndexOf("\n", turn.shared - 1) + 1 || turn.shared;
  const rest = turn.prompt.slice(shared);
  const box = el("div.text.prompt");
  const render = (whole) => {
    const same = shared > 40 && !whole;
    box.replaceChildren(
      ...(same
        ? [
            el(
              "button.same",
              { title: "show it", onclick: () => render(true) },
              `${count(shared)} characters as before`,
            ),
          ]
        : [el("span", {}, turn.prompt.slice(0, shared))]),
      el("span", {}, rest),
    );
  };
  render(false);
  const lines = rest.split("\n").length + rest.length / 110;
  if (lines <= 13) return [box];
  box.classList.add("fold");
  const more = el(
    "button.more",
    {
      onclick: () => {
        box.classList.toggle("fold");
        more.textContent = box.classList.contains("fold") ? "show the whole prompt" : "fold";
      },
    },
    "show the whole prompt",
  );
  return [box, el("div", {}, more)];
}

function noteNode(note) {
  const text = el("span");
  let at = 0;
  for (const [start, stop] of note.spans ?? []) {
    text.append(note.text.slice(at, start), el("mark", {}, note.text.slice(start, stop)));
    at = stop;
  }
  text.append(note.text.slice(at));
  return el(`div.note.${note.level}`, {}, el("b", {}, note.kind), text);
}

/** A label that may be broken at its colons and underscores. */
const breakable = (label) =>
  label.split(/(?<=[:_/])/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));
const figure = (label, value, classes = "") =>
  el("span.figure", {}, `${label} `, el("b", { className: classes }, value));

function advantageFigures(turn, mean) {
  if (turn.masked) return [figure("advantage", "masked")];
  const place = turn.sit ? "in this situation" : "at this step";
  const around = mean === null ? null : figure(`mean of the ${mean.n} ${place}`, number(mean.mean, 3));
  if (turn.adv === undefined) return [around];
  const sign = turn.adv > 0 ? "plus" : turn.adv < 0 ? "minus" : "";
  return [
    figure("advantage", signed(turn.adv), sign),
    around,
    turn.weight !== 1 ? figure("loss weight", number(turn.weight, 4)) : null,
    figure("step", String(turn.step)),
    turn.versions.length
      ? figure("age", `${count(Math.max(0, turn.at - turn.versions[0][0]))} samples`)
      : null,
  ];
}

function turnNode(turn, at, { mean = null, notes = [], scale }) {
  const finish = turn.finish && turn.finish !== "stop" ? figure("ended by", turn.finish, "minus") : null;
  const meta = turn.meta.length
    ? el(
        "details.meta",
        {},
        el("summary", {}, "what the domain noted"),
        el(
          "dl",
          {},
          turn.meta.flatMap(([key, value]) => [el("dt", {}, key), el("dd", {}, value)]),
        ),
      )
    : null;
  return el(
    "article.turn",
    { id: `turn-${at}` },
    el(
      "header",
      {},
      el("h3", {}, `${at + 1}`, turn.sit ? " · " : null, breakable(turn.sit ?? "")),
      turn.role ? el("span.badge", {}, turn.role) : null,
      figure("reward", number(turn.reward, 3)),
      ...advantageFigures(turn, mean),
      figure("tokens", `${count(turn.tokens[0])} + ${count(turn.tokens[1])}`),
      finish,
    ),
    el(
      "div.body",
      {},
      el("div", {}, el("div.label", {}, "prompt"), ...promptNode(turn, at === 0)),
      el("div", {}, el("div.label", {}, "sampled"), tokensNode(turn, at, scale)),
      ...notes.map(noteNode),
      meta,
    ),
  );
}

const kindOf = (turn, at) => turn.sit ?? `step ${at}`;
/** The texts of its group at a text's place: in its situation, as far from the end there, or at its step. */
const placeOf = (turn, at) => `${kindOf(turn, at)} ${turn.place ?? ""}`;

/** Mean reward and number of the texts of a group at each place. */
function meansOf(rollouts) {
  const rewards = new Map();
  for (const rollout of rollouts) {
    rollout.turns.forEach((turn, at) => {
      if (turn.masked) return;
      if (!rewards.has(placeOf(turn, at))) rewards.set(placeOf(turn, at), []);
      rewards.get(placeOf(turn, at)).push(turn.reward);
    });
  }
  return new Map(
    [...rewards].map(([place, values]) => [
      place,
      { n: values.length, mean: values.reduce((a, b) => a + b, 0) / values.length },
    ]),
  );
}

function partsNode(turns) {
  const sums = new Map();
  for (const turn of turns)
    for (const [name, value] of turn.parts) sums.set(name, (sums.get(name) ?? 0) + value);
  const parts = [...sums].filter(([, value]) => value !== 0);
  if (parts.length < 2) return null;
  const colour = (i, value) => (value < 0 ? "var(--hot)" : i ? hue(i + 1) : "var(--cold)");
  return el(
    "div.parts",
    {},
    el(
      "div.stack",
      { title: "reward parts over all samples" },
      parts.map(([, value], i) =>
        el("i", { style: { flexGrow: Math.abs(value), background: colour(i, value) } }),
      ),
    ),
    el(
      "div.keys",
      {},
      "reward parts, summed over samples:",
      parts.map(([name, value], i) =>
        el(
          "span",
          {},
          el("i", { style: { background: colour(i, value) } }),
          `${name} `,
          el("span.num", {}, signed(value, 3)),
        ),
      ),
    ),
  );
}

function fact(label, value, classes = "") {
  return el("div", {}, el("dt", {}, label), el("dd", { className: classes }, value));
}

function titleNode(row) {
  const attempts = siblingsOf(row).length,
    versions = versionsOfProblem(row).length;
  const views = [
    ["rollout", "rollout"],
    attempts > 1 && ["group", `group of ${attempts}`],
    versions > 1 && ["versions", plural(versions, "version")],
  ].filter(Boolean);
  return [
    el(
      "div.title",
      {},
      el(
        "button.ghost",
        {
          id: "back",
          onclick: () => {
            location.hash = "";
          },
        },
        "← list",
      ),
      el("h2", {}, row.name),
      row.badge ? el(`span.badge.${row.level || "info"}`, {}, row.badge) : null,
      el(
        "div.tabs",
        { role: "tablist" },
        views.map(([key, title]) =>
          el(
            "button",
            { role: "tab", "aria-selected": String(current.view === key), onclick: () => go(row.id, key) },
            title,
          ),
        ),
      ),
      el(
        "span.step",
        {},
        el(
          "button.ghost",
          { title: "previous (k)", "aria-label": "previous rollout", onclick: () => move(-1) },
          "↑",
        ),
        el(
          "button.ghost",
          { title: "next (j)", "aria-label": "next rollout", onclick: () => move(1) },
          "↓",
        ),
      ),
    ),
  ];
}

function factsNode(row) {
  const versions =
    row.version === row.last ? count(row.version) : `${count(row.version)} to ${count(row.last)}`;
  return el(
    "dl.facts",
    {},
    page.runs.length > 1 ? fact("run", page.runs[row.run].name) : null,
    fact("reward", number(row.reward, 3)),
    row.success === null || row.success === undefined
      ? null
      : fact("success", row.success ? "yes" : "no", row.success ? "good" : "bad"),
    fact(
      row.evaluated === null ? "fate" : "evaluation",
      row.evaluated === null
        ? row.fate + (row.reason ? `: ${row.reason}` : "")
        : `of version ${count(row.evaluated)}`,
      row.fate === "failed" ? "bad" : "",
    ),
    row.turns ? fact("weight version", versions) : null,
    row.step === null || row.step === undefined ? null : fact("trained in step", String(row.step)),
    fact("samples", count(row.turns)),
    fact("tokens", `${count(row.prompt_tokens)} + ${count(row.output_tokens)}`),
    row.problem === null || row.problem === undefined ? null : fact("problem", String(row.problem)),
    row.dataset ? fact("dataset", row.dataset) : null,
    row.seconds ? fact("seconds", number(row.seconds, 1)) : null,
    row.retries ? fact("retries", String(row.retries)) : null,
  );
}

/** What was asked; the answer, and beside it what is right, where the domain says so. */
function askedNode(row, rollout) {
  if (!rollout.question && !rollout.answer) return null;
  const known = row.success !== null && row.success !== undefined;
  const part = (label, text, classes = "") =>
    el("div", {}, el("div.label", {}, label), el("div", { className: `text ${classes}` }, text || "nothing"));
  return el(
    "div.asked-node",
    {},
    part("question", rollout.question),
    el(
      "div.beside",
      {},
      part("answer", rollout.answer, known ? (row.success ? "good" : "bad") : ""),
      rollout.gold === undefined ? null : part("gold", rollout.gold),
    ),
  );
}

async function rolloutView(row) {
  const rollout = await rolloutOf(row),
    siblings = await Promise.all(siblingsOf(row).map(rolloutOf));
  const means = meansOf(siblings),
    alone = siblings.length < 2,
    scale = scaleOf(rollout.turns);
  const notes = (at) => rollout.notes.filter((note) => note.turn === at);
  return [
    ...titleNode(row),
    factsNode(row),
    askedNode(row, rollout),
    partsNode(rollout.turns),
    ...rollout.notes.filter((note) => note.turn === null).map(noteNode),
    rollout.turns.length
      ? colourTools(rollout.turns)
      : el("p.hint", {}, `It ended without a text${row.reason ? `: ${row.reason}` : "."}`),
    ...rollout.turns.map((turn, at) =>
      turnNode(turn, at, {
        mean: alone ? null : (means.get(placeOf(turn, at)) ?? null),
        notes: notes(at),
        scale,
      }),
    ),
  ].filter(Boolean);
}
