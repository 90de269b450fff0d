"""Draw problems of several domains so that completed rollouts follow the wanted mixture."""

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

ADAPT_AFTER = 50
"""Completions before weights are corrected."""
LARGEST_CORRECTION = 10.0


class DomainWeightedSampler:
    """Draws a domain by weight, then one of its problems uniformly.

    With `adaptive`, domains whose rollouts come back late or fail are drawn more often: after 50
    completions each weight is multiplied by target share / actual share of completions, within 0.1 .. 10.
    """

    def __init__(
        self,
        samples: Sequence[dict[str, Any]],
        weights: Mapping[str, float],
        rng: random.Random | None = None,
        adaptive: bool = True,
    ):
        self.samples = samples
        self.rng = rng if rng is not None else random.Random()
        self.adaptive = adaptive
        self.completed: Counter[str] = Counter()
        self.members: dict[str, list[int]] = defaultdict(list)
        """Indices of each domain's problems, ascending."""
        for index, sample in enumerate(samples):
            if not sample.get("domain"):
                raise ValueError(
                    f"problem {index} has no 'domain'; actor.domain_mix needs one in each problem"
                )
            self.members[str(sample["domain"])].append(index)
        self.targets = self._normalised(weights)

    def _normalised(self, weights: Mapping[str, float]) -> dict[str, float]:
        positive = {}
        for domain, weight in weights.items():
            if weight < 0:
                raise ValueError(f"actor.domain_mix.{domain} is {weight}, expected a weight >= 0")
            if weight > 0 and domain not in self.members:
                known = ", ".join(sorted(self.members))
                raise ValueError(
                    f"actor.domain_mix.{domain}: no problem has that domain; problems have {known}"
                )
            if weight > 0:
                positive[domain] = float(weight)
        total = sum(positive.values())
        if total <= 0:
            raise ValueError(f"actor.domain_mix {dict(weights)} has no positive weight")
        # As in upstream: a domain that was forgotten would never be drawn, and nothing would say so.
        if missing := ", ".join(sorted(self.members.keys() - set(map(str, weights)))):
            raise ValueError(
                f"actor.domain_mix has no weight for {missing}, and problems have that domain; give each a "
                "weight (0: it is never drawn)"
            )
        return {domain: weight / total for domain, weight in positive.items()}

    def record_completion(self, domain: str) -> None:
        self.completed[domain] += 1

    def current_weights(self) -> dict[str, float]:
        """Unnormalised weights of the next draw."""
        total = sum(self.completed[domain] for domain in self.targets)
        if not self.adaptive or total < ADAPT_AFTER:
            return dict(self.targets)
        corrected = {}
        for domain, target in self.targets.items():
            actual = self.completed[domain] / total
            ratio = target / actual if actual > 0 else LARGEST_CORRECTION
            corrected[domain] = target * min(max(ratio, 1 / LARGEST_CORRECTION), LARGEST_CORRECTION)
        return corrected

    def sample_domain(self) -> str:
        weights = self.current_weights()
        return self.rng.choices(list(weights), list(weights.values()))[0]

    def sample_index(self) -> int:
        return self.rng.choice(self.members[self.sample_domain()])

    def sample(self) -> dict[str, Any]:
        return self.samples[self.sample_index()]

    def state_dict(self) -> dict[str, Any]:
        return {"completed": dict(self.completed)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.completed = Counter({str(domain): int(count) for domain, count in state["completed"].items()})
