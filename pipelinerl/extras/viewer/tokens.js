// Tokens of a text in colours, and what is known of each.

const COLOURS = [
  ["none", "plain"],
  ["lp", "log-probability"],
  ["ref", "against the reference"],
  ["version", "weight version"],
  ["adv", "advantage"],
];
let colouring = "lp";
try {
  colouring = localStorage.getItem("pipelinerl.colouring") ?? "lp";
} catch {
  /* a page on a disk may have no storage */
}

const mix = (colour, share) =>
  `color-mix(in srgb, ${colour} ${Math.round(100 * Math.min(1, Math.max(0, share)))}%, transparent)`;
const hue = (i) => `hsl(${(i * 137.5 + 210) % 360} 62% 55%)`;
const versionsOf = (turns) =>
  [...new Set(turns.flatMap((turn) => turn.versions.map((span) => span[0])))].sort((a, b) => a - b);

/** What is known of a token; `k` counts the sampled ones, which log-probabilities and versions are of. */
function tokenFacts(turn, at) {
  const sampled = turn.sampled === null || turn.sampled[at] === 1;
  const k = turn.sampled === null ? at : turn.sampled.slice(0, at).reduce((a, b) => a + b, 0);
  const span = sampled ? turn.versions.find(([, start, end]) => start <= k && k < end) : null;
  return {
    id: turn.ids[at],
    text: turn.texts[at],
    sampled,
    k,
    lp: sampled ? turn.lp[k] / 1000 : null,
    ref: sampled && turn.ref ? turn.ref[k] / 1000 : null,
    version: span ? span[0] : null,
    age: span && turn.at !== undefined ? Math.max(0, turn.at - span[0]) : null,
  };
}

/** Background of each token of a text under the chosen colouring, and where a version begins. */
function tokenColours(turn, scale) {
  const n = turn.ids.length,
    colours = new Array(n).fill(""),
    changes = new Set();
  const own = turn.sampled === null ? null : turn.sampled;
  let k = 0,
    span = 0,
    last = null;
  for (let at = 0; at < n; at++) {
    if (own && !own[at]) continue;
    while (span < turn.versions.length && k >= turn.versions[span][2]) span++;
    const version = span < turn.versions.length ? turn.versions[span][0] : null;
    if (last !== null && version !== last) changes.add(at);
    last = version;
    if (colouring === "lp") colours[at] = mix("var(--hot)", Math.min(1, -turn.lp[k] / 4000) * 0.75);
    else if (colouring === "ref" && turn.ref) {
      const more = (turn.lp[k] - turn.ref[k]) / 1000;
      colours[at] = mix(more > 0 ? "var(--cold)" : "var(--hot)", Math.min(1, Math.abs(more) / 2) * 0.7);
    } else if (colouring === "version" && version !== null)
      colours[at] = mix(hue(scale.versions.indexOf(version)), 0.3);
    else if (colouring === "adv" && turn.adv) {
      const value = turn.adv * (turn.weight ?? 1);
      colours[at] = mix(
        value > 0 ? "var(--cold)" : "var(--hot)",
        0.12 + 0.55 * (Math.abs(value) / scale.advantage),
      );
    }
    k++;
  }
  return { colours, changes };
}

const MOST_TOKENS = 2500;
function tokensNode(turn, number_, scale, most = MOST_TOKENS) {
  const box = el("div.text.output", { "data-turn": number_ });
  box.turn = turn;
  const { colours, changes } = tokenColours(turn, scale);
  const end = Math.min(turn.ids.length, most);
  for (let at = 0; at < end; at++) {
    const text = turn.texts[at],
      own = turn.sampled === null || turn.sampled[at];
    const special = /^<\|?[^<>]*\|?>$/.test(text) || text === "";
    const node = el("span", { textContent: text === "" ? "·" : text });
    node.className =
      "t" + (special ? " special" : "") + (own ? "" : " given") + (changes.has(at) ? " change" : "");
    if (colours[at]) node.style.background = colours[at];
    node.dataset.at = at;
    box.append(node);
  }
  if (end < turn.ids.length) {
    box.append(
      el(
        "button.more",
        {
          onclick: (event) =>
            event.target.parentNode.replaceWith(tokensNode(turn, number_, scale, Infinity)),
        },
        ` … ${plural(turn.ids.length - end, "further token")}`,
      ),
    );
  }
  return box;
}

function legend(turns, scale) {
  const bar = (gradient, from, to) => [from, el("span.scale", { style: { background: gradient } }), to];
  if (colouring === "lp")
    return bar(
      "linear-gradient(90deg, transparent, color-mix(in srgb, var(--hot) 75%, transparent))",
      "p = 1",
      "p ≤ 0.02",
    );
  if (colouring === "ref") {
    if (!turns.some((turn) => turn.ref)) return ["this run scored no reference"];
    return bar(
      `linear-gradient(90deg, ${mix("var(--hot)", 0.7)}, transparent, ${mix("var(--cold)", 0.7)})`,
      "less likely than before",
      "more likely",
    );
  }
  if (colouring === "adv") {
    if (!turns.some((turn) => turn.adv !== undefined)) return ["no optimizer step saw these samples"];
    return bar(
      `linear-gradient(90deg, ${mix("var(--hot)", 0.67)}, transparent, ${mix("var(--cold)", 0.67)})`,
      `−${number(scale.advantage, 3)}`,
      `+${number(scale.advantage, 3)} advantage × loss weight`,
    );
  }
  if (colouring === "version") {
    const shown = scale.versions
      .slice(0, 8)
      .map((version, i) =>
        el("span", {}, el("span.swatch", { style: { background: mix(hue(i), 0.55) } }), count(version)),
      );
    return [
      ...shown,
      scale.versions.length > 8 ? `and ${scale.versions.length - 8} more` : "",
      "texts trained before the weights existed",
    ];
  }
  return [];
}

const scaleOf = (turns) => ({
  versions: versionsOf(turns),
  advantage: Math.max(1e-9, ...turns.map((turn) => Math.abs((turn.adv ?? 0) * (turn.weight ?? 1)))),
});

function colourTools(turns) {
  const scale = scaleOf(turns);
  return el(
    "div.tools",
    {},
    el(
      "div.tabs",
      { role: "radiogroup", "aria-label": "colour of tokens" },
      COLOURS.map(([key, title]) =>
        el(
          "button",
          {
            role: "radio",
            "aria-checked": String(colouring === key),
            "aria-selected": String(colouring === key),
            title: `colour tokens: ${title} (c)`,
            onclick: () => setColouring(key),
          },
          title,
        ),
      ),
    ),
    el("span.legend", {}, legend(turns, scale)),
  );
}

function setColouring(key) {
  colouring = key;
  try {
    localStorage.setItem("pipelinerl.colouring", key);
  } catch {
    /* as above */
  }
  const top = $("detail").scrollTop;
  if (!current.id) return;
  show(page.byId.get(current.id), current.view).then(() => {
    $("detail").scrollTop = top;
  });
}
