"""Draw the figure of `docs/architecture.md`, light and dark: `python docs/pipeline.py [FOLDER]`.

Letters are 14 of 700 units high, which is as many pixels in a column of a page.
"""

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

FILES = {"pipeline.svg": False, "pipeline_dark.svg": True}
"""By name, whether it is for dark pages."""
WIDTH, HEIGHT = 700, 432
COLOURS = {
    False: {
        "paper": "#ffffff",
        "ink": "#1b1c1e",
        "dim": "#5f6c7b",
        "process": "#dbe9f6",
        "server": "#e3f1e3",
        "domain": "#fbeed5",
        "weights": "#b8430f",
    },
    True: {
        "paper": "#18191c",
        "ink": "#e7e8ea",
        "dim": "#a5adb8",
        "process": "#1f3a55",
        "server": "#1f4030",
        "domain": "#4a3a18",
        "weights": "#ff8f4a",
    },
}
"""By whether pages are dark; paper and ink are those of the measured figures (`observe/figure_style.py`)."""
Point = tuple[float, float]


def box(x: float, y: float, w: float, h: float, kind: str, title: str, *lines: str) -> str:
    """A rounded box with its upper left corner at (x, y)."""
    middle = x + w / 2
    said = [f'<text x="{middle}" y="{y + 25}" class="title">{escape(title)}</text>']
    said += [
        f'<text x="{middle}" y="{y + 27 + 20 * n}">{escape(one)}</text>' for n, one in enumerate(lines, 1)
    ]
    return f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="9" class="{kind}"/>{"".join(said)}'


def arrow(points: Sequence[Point], kind: str = "ink") -> str:
    """Straight segments through the points, a head at the last one."""
    path = " L ".join(f"{x} {y}" for x, y in points)
    return f'<path d="M {path}" class="arrow {kind}-arrow" marker-end="url(#{kind})"/>'


def label(x: float, y: float, *lines: str, kind: str = "dim", anchor: str = "middle") -> str:
    """Lines of text, the first with its baseline at y."""
    place = [(escape(one), y + 19 * n) for n, one in enumerate(lines)]
    return "".join(
        f'<text x="{x}" y="{at}" class="{kind}" style="text-anchor:{anchor}">{one}</text>'
        for one, at in place
    )


def head(kind: str, colour: str) -> str:
    """The head of an arrow, eleven units long."""
    shape = f'<path d="M 0 0 L 11 5.5 L 0 11 z" fill="{colour}"/>'
    size = 'viewBox="0 0 11 11" refX="10.5" refY="5.5" markerWidth="11" markerHeight="11"'
    return f'<marker id="{kind}" {size} markerUnits="userSpaceOnUse" orient="auto">{shape}</marker>'


def parts() -> list[str]:
    return [
        box(8, 62, 120, 112, "domain", "domain", "problems,", "rollout code,", "rewards"),
        box(198, 62, 168, 112, "process", "actor", "runs rollouts", "within the lag", "budget; evaluates"),
        box(
            506, 62, 168, 112, "process", "preprocess", "advantages, filter,", "packing into", "micro-batches"
        ),
        box(8, 274, 120, 112, "server", "retrieval", "search in", "private and", "web documents"),
        box(198, 274, 168, 112, "server", "engine", "samples tokens;", "goes on across", "weight updates"),
        box(
            506, 274, 168, 112, "process", "finetune", "loss, optimizer", "step, checkpoints,", "new weights"
        ),
        arrow([(128, 118), (198, 118)]),
        label(162, 109, "imported"),
        arrow([(366, 118), (506, 118)]),
        label(436, 90, "stream “actor”:", "groups"),
        arrow([(590, 174), (590, 274)]),
        label(580, 246, "stream “training_data”:", "micro-batches", anchor="end"),
        arrow([(232, 174), (232, 274)]),
        label(224, 244, "token", "ids", anchor="end"),
        arrow([(312, 274), (312, 174)]),
        label(322, 200, "tokens, log-probabilities,", "weight versions", anchor="start"),
        arrow([(198, 150), (164, 150), (164, 222), (68, 222), (68, 274)]),
        label(80, 194, "queries,", "documents"),
        arrow([(506, 330), (366, 330)], "weights"),
        label(436, 320, "new weights,", kind="weights"),
        label(436, 349, "taken between", "decoding steps", kind="weights"),
        arrow([(674, 330), (692, 330), (692, 32), (282, 32), (282, 62)], "dim"),
        label(486, 22, "number of the new version; samples trained or discarded"),
        label(350, 418, "The launcher starts, watches and stops the processes; the domain is a module."),
    ]


def drawing(dark: bool) -> str:
    """The whole figure."""
    colours = COLOURS[dark]
    sheet = [
        f"text {{ font: 14px 'DejaVu Sans', Verdana, sans-serif; fill: {colours['ink']} }}",
        "text { text-anchor: middle }",
        ".title { font-size: 16px; font-weight: bold }",
        *(f"text.{kind} {{ fill: {colours[kind]} }}" for kind in ("dim", "weights")),
        *(f"rect.{kind} {{ fill: {colours[kind]} }}" for kind in ("process", "server", "domain")),
        f"rect {{ stroke: {colours['ink']}; stroke-width: 1.2 }}",
        ".arrow { fill: none; stroke-width: 1.7 }",
        *(f".{kind}-arrow {{ stroke: {colours[kind]} }}" for kind in ("ink", "dim", "weights")),
        ".dim-arrow { stroke-dasharray: 6 4 } .weights-arrow { stroke-width: 2.4 }",
    ]
    heads = [head(kind, colours[kind]) for kind in ("ink", "dim", "weights")]
    paper = f'<path d="M 0 0 H {WIDTH} V {HEIGHT} H 0 z" fill="{colours["paper"]}"/>'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    defined = f"<title>The pipeline</title><style>{' '.join(sheet)}</style><defs>{''.join(heads)}</defs>"
    return "\n".join([opening, defined, paper, *parts(), "</svg>", ""])


def main(argv: Sequence[str]) -> None:
    folder = Path(argv[0]) if argv else Path(__file__).parent
    for name, dark in FILES.items():
        (folder / name).write_text(drawing(dark), encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main(sys.argv[1:])
