"""What samples were compared with over a run: `adv/situation/*` and `adv/role/*` of preprocess together.

Called by the summary of a run; the report has a table for each kind of label that its samples have.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

KINDS = ("situation", "role")
_MEANS = {
    "reward_mean": "reward",
    "abs_mean": "absolute advantage",
    "frac_zero_texts": "share with advantage 0",
    "mean_bucket_size": "rows of a bucket",
    "frac_singleton_buckets": "share of buckets with one row",
}
"""Metric of a label -> its column."""
EXPLANATION = (
    "All samples that were compared, also of groups that the filter dropped. A bucket is a set of samples "
    "with one baseline; its rows include padding, and alone in one a sample has advantage 0."
)

Totals = dict[str, dict[str, float]]
"""Label -> `count` (samples) and the means."""


def label_totals(records: Sequence[dict[str, Any]], kind: str) -> Totals:
    """What the metrics of preprocess say of each situation or role; empty where samples have none.

    A record counts what happened since the one before, so counts are added up, and a mean over records
    weighs each by its samples. Samples without a label are `none`.
    """
    begins, ends = f"adv/{kind}/", "/count"
    sums: Totals = defaultdict(lambda: defaultdict(float))
    for record in records:
        for name in [name for name in record if name.startswith(begins) and name.endswith(ends)]:
            label, texts = name.removeprefix(begins).removesuffix(ends), record[name]
            sums[label]["count"] += texts
            for mean in _MEANS:
                sums[label][mean] += texts * record[f"{begins}{label}/{mean}"]
    return {
        label: {name: value if name == "count" else value / of["count"] for name, value in of.items()}
        for label, of in sums.items()
    }


def label_rows(kind: str, totals: Totals) -> list[tuple[str, ...]]:
    """The table of one kind, header first; labels with most samples first."""
    rows: list[tuple[str, ...]] = [(kind, "texts", *_MEANS.values())]
    for label, of in sorted(totals.items(), key=lambda item: -item[1]["count"]):
        rows.append((label, f"{of['count']:,.0f}", *(f"{of[name]:.3f}" for name in _MEANS)))
    return rows
