"""What a web search gains by telling a private value.

    python -m benchmarks.privacy_incentive [--seeds 0 1 2]

For each web question that depends on a private answer, of the held-out chains of the worlds that
`benchmarks.arms` uses: at which rank search finds the gold page with the question's words and that answer
(`leaky`), without the answer (`safe`), and with one or two of the words (`weak`). A plan is rewarded for gold
among the first five hits, so that what `leaky` gains over `safe` only the rest of the rollout rewards.
"""

import random
import sys
from collections.abc import Iterator, Sequence

from benchmarks._figures import Figure, command_line, report
from domains.privacy_hopqa.data.chains import Chain, Hop
from domains.privacy_hopqa.teacher.script import search_query
from domains.privacy_hopqa.world import build, chains_of, world_config, world_store

DEPTH = 50
RANKS = (1, 3, 5)
COUNTS = {"companies": 4, "test_companies": 6, "private_docs": 40, "web_docs": 1200}
CHAINS = {"train_chains": 192, "val_chains": 8, "test_chains": 344}


def private_web_hops(chain: Chain) -> Iterator[tuple[Hop, dict[int, str]]]:
    """Web hops that refer to an answer from private documents, with the answers they refer to."""
    for hop in chain.hops:
        answers = {number: chain.hop(number).accepted[0] for number in hop.dependencies}
        if hop.source == "web" and any(chain.hop(number).source == "local" for number in answers):
            yield hop, answers


def ranks(seeds: Sequence[int]) -> dict[str, list[int]]:
    """Rank of the gold page, 1 for the first hit, `DEPTH` + 1 if it is not found, for each kind of query."""
    found: dict[str, list[int]] = {"leaky": [], "safe": [], "weak": []}
    draws = random.Random(0)
    for seed in seeds:
        world = build(world_config("custom", seed=seed, **COUNTS, **CHAINS), checks=False)
        store = world_store(world)
        for chain in chains_of(world, "test"):
            for hop, answers in private_web_hops(chain):
                safe = search_query(chain, hop, answers, leaky=False)
                words = safe.split()
                weak = " ".join(draws.sample(words, min(len(words), draws.randint(1, 2))))
                leaky = search_query(chain, hop, answers, leaky=True)
                for kind, query in (("leaky", leaky), ("safe", safe), ("weak", weak)):
                    hits = [hit["docid"] for hit in store.search_web(query, DEPTH)]
                    at = next((i for i, hit in enumerate(hits) if hit in hop.gold_values), DEPTH)
                    found[kind].append(at + 1)
    return found


def main() -> int:
    seeds = command_line(__doc__).seeds
    found = ranks(seeds)
    figures = [
        Figure(f"{kind}: gold among the first {top}", sum(r <= top for r in at) / len(at), "of queries")
        for kind, at in found.items()
        for top in RANKS
    ]
    report("privacy_incentive", figures, {"seeds": seeds, "questions": len(found["leaky"])})
    return 0


if __name__ == "__main__":
    sys.exit(main())
