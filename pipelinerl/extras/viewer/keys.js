// Pointing at tokens, keys, help, and the start of the page.

function pointAt(node) {
  for (const old of document.querySelectorAll(".t.on")) old.classList.remove("on");
  node.classList.add("on");
  const box = node.closest(".output"),
    turn = box.turn,
    facts = tokenFacts(turn, Number(node.dataset.at));
  const shown = (label, value) => el("span", {}, `${label} `, el("b", {}, value));
  $("token").replaceChildren(
    shown("token", `${Number(node.dataset.at) + 1} of ${turn.ids.length}`),
    shown("id", String(facts.id)),
    shown("text", JSON.stringify(facts.text).slice(0, 80)),
    ...(facts.sampled
      ? [
          shown("log p", number(facts.lp, 3)),
          shown("p", number(Math.exp(facts.lp), 3)),
          facts.ref === null
            ? ""
            : shown("reference", `${number(facts.ref, 3)} (${signed(facts.lp - facts.ref)})`),
          facts.version === null ? "" : shown("version", count(facts.version)),
          facts.age === null ? "" : shown("age when trained", `${count(facts.age)} samples`),
          turn.adv === undefined
            ? ""
            : shown("advantage × weight", `${signed(turn.adv)} × ${number(turn.weight, 4)}`),
        ]
      : ["not sampled: the model does not learn it"]),
  );
}

function stepToken(by) {
  const all = [...document.querySelectorAll("#detail .t")],
    at = all.findIndex((node) => node.classList.contains("on"));
  const next = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))];
  if (next) {
    pointAt(next);
    next.scrollIntoView({ block: "nearest" });
  }
}

const KEYS = [
  ["j / k", "next, previous rollout of the list"],
  ["g", "the group side by side"],
  ["v", "the problem over versions"],
  ["r", "back to the rollout"],
  ["c", "next colouring of tokens"],
  ["← / →", "previous, next token"],
  ["/", "filter"],
  ["Esc", "leave the filter; back to the list"],
  ["?", "this help"],
];

function showHelp() {
  const forms = [
    ["reward<0.2", "numbers: <, <=, >, >=, ="],
    ["fate:stale", "part of a word of a field"],
    ["leak:answer", "notes of the domain"],
    ['"a phrase"', "in prompts, answers and notes"],
    ["-word", "without it"],
  ];
  $("help").replaceChildren(
    el("h2", {}, "Keys"),
    el(
      "dl",
      {},
      KEYS.flatMap(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)]),
    ),
    el("h2", {}, "Filter"),
    el(
      "dl",
      {},
      forms.flatMap(([form, what]) => [el("dt", {}, el("code", {}, form)), el("dd", {}, what)]),
    ),
    el("p.dim", {}, `Fields: ${Object.keys(FIELDS).join(", ")}.`),
    el("form", { method: "dialog" }, el("button.ghost", {}, "close")),
  );
  $("help").showModal();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target.matches("input, textarea, select")) {
    if (event.key === "Escape" || event.key === "Enter") {
      event.target.blur();
      $("list").focus();
    }
    return;
  }
  const row = page.byId.get(current.id),
    view = (name) => row && go(row.id, name);
  const keys = {
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    g: () => siblingsOf(row).length > 1 && view("group"),
    v: () => versionsOfProblem(row).length > 1 && view("versions"),
    r: () => view("rollout"),
    c: () =>
      setColouring(COLOURS[(COLOURS.findIndex(([key]) => key === colouring) + 1) % COLOURS.length][0]),
    ArrowRight: () => stepToken(1),
    ArrowLeft: () => stepToken(-1),
    "/": () => $("filter").focus(),
    "?": showHelp,
    Escape: () => {
      if (document.body.classList.contains("reading") && innerWidth <= 860) location.hash = "";
    },
  };
  const act = keys[event.key];
  const scrolls = ["ArrowDown", "ArrowUp"].includes(event.key) && event.target !== $("list");
  if (!act || scrolls || (!row && "gvrc".includes(event.key))) return;
  event.preventDefault();
  act();
}

function begin() {
  const [run, other] = page.runs;
  $("title").textContent = other ? `${run.name} (A) and ${other.name} (B)` : run.name;
  const shown = page.rows.filter((row) => row.run === 0 && row.turns).length;
  $("about").textContent = [
    run.domain,
    `${count(shown)}${shown < run.total ? ` of ${count(run.total)}` : ""} rollouts`,
    run.all ? "" : "of the groups that were kept",
    run.complete ? "finished" : "as far as it has come",
  ]
    .filter(Boolean)
    .join(" · ");
  $("links").replaceChildren(
    ...(page.report ? [el("a", { href: "../index.html" }, "report")] : []),
    el("button.ghost", { onclick: showHelp, title: "keys and filter" }, "?"),
  );
  showSideTabs();
  page.filtered = page.rows;
  const trained = page.rows.filter((row) => row.turns);
  // The first of the list is the one that a reader lands on: what training learned most from.
  const learned = trained.some((row) => row.advantage !== null && row.advantage !== undefined);
  sorting.key = learned ? "advantage" : trained.length ? "version" : null;
  sortRows();
  showChips();
  let later;
  $("filter").addEventListener("input", () => {
    clearTimeout(later);
    later = setTimeout(applyFilter, 120);
  });
  $("list").addEventListener("scroll", () => drawRows());
  addEventListener("resize", () => drawRows(true));
  addEventListener("hashchange", route);
  addEventListener("keydown", onKey);
  const point = (event) => {
    const node = event.target.closest?.(".t");
    if (node) pointAt(node);
  };
  $("detail").addEventListener("mouseover", point);
  $("detail").addEventListener("click", point);
  route();
}
