"""Whether groups give the policy anything to learn from; asked by the loop, which remarks when none does.

A run without a signal goes on: its groups are trained on with advantages of 0, or dropped and made anew, and
nothing else tells it from one that learns slowly.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from pipelinerl.base.logs import REMARK
from pipelinerl.config import Config, RLConfig
from pipelinerl.finetune.rl.losses import declared
from pipelinerl.finetune.rl.sample import Sample
from pipelinerl.preprocess.chunk import ChunkResult
from pipelinerl.preprocess.reading import ReadGroup

log = logging.getLogger(__name__)

GROUPS = 20
"""Groups in a row that are remarked."""
EQUAL, CUT, FACTOR, BELOW = "equal rewards", "cut samples", "no positive factor", "factors below 0"
TINY = "rewards that hardly differ"
LEAST = 1e-6
"""Size of a weight, as of advantages that `zero_advantage` drops; gradients of smaller ones vanish."""


class SignalWatch:
    """Counts groups in a row that move nothing, by reason; `remark` is one line, once."""

    def __init__(self, cfg: Config) -> None:
        self._cfg, tune = cfg, cfg.finetune
        # Supervised samples need no factor, and a value head learns from equal rewards too.
        self._by_factor = declared(tune.rl.policy_loss).compares and not tune.has_value_head
        self._reasons = Counter[str]()
        self._rewards: tuple[float, float] | None = None
        """The lowest and the highest one among groups of equal rewards."""
        self._said = False

    def chunk(self, groups: Iterable[ReadGroup], result: ChunkResult) -> None:
        """Take in the groups of a chunk and what became of them."""
        ready, dropped = defaultdict[str, list[Sample]](list), defaultdict[str, list[str]](list)
        for sample in result.ready:
            ready[sample.group_id].append(sample)
        for sample, reason in result.dropped:
            dropped[sample.group_id].append(reason)
            if reason == "zero_advantage":
                self._note_rewards([sample])
        for group in groups:
            name = group.samples[0].group_id if group.samples else ""
            self.add(ready[name], [*dropped[name], *(reason for _, reason in group.dropped)])
        if (line := self.remark()) is not None:
            log.warning(line, extra=REMARK)

    def add(self, ready: Sequence[Sample], dropped: Iterable[str]) -> None:
        """A group: what can be trained on, valued, and for what the rest was dropped."""
        if any(self._moves(sample) for sample in ready):
            self._reasons.clear()
            self._rewards = None
            return
        reason = self._reason(ready, dropped)
        self._reasons[reason] += 1
        if ready and reason == EQUAL:
            self._note_rewards(ready)

    def remark(self) -> str | None:
        """What to say now, the first time that there is something to say."""
        if self._said or (total := self._reasons.total()) < GROUPS:
            return None
        self._said = True
        common, _ = self._reasons.most_common(1)[0]
        reasons = ", ".join(f"{reason} {count}" for reason, count in self._reasons.most_common())
        return f"nothing to learn from {total} groups in a row ({reasons}): {self._meaning(common)}"

    def _moves(self, sample: Sample) -> bool:
        """Whether the policy term of this sample has a gradient."""
        rl = self._cfg.finetune.rl
        if rl.overlong_filtering and sample.overflow:
            return False
        if not self._by_factor:
            return True
        smallest, largest = self._factors(sample)
        return largest > LEAST or (smallest < -LEAST and not rl.relu_log_p_weights)

    def _factors(self, sample: Sample) -> tuple[float, float]:
        """The smallest and the largest weight of a token."""
        factor = sample.advantage if self._cfg.finetune.rl.use_advantages else sample.reward
        if (by_token := sample.token_advantages) is None:
            return factor, factor
        return float(factor + by_token.min()), float(factor + by_token.max())

    def _reason(self, ready: Sequence[Sample], dropped: Iterable[str]) -> str:
        if ready:
            rl = self._cfg.finetune.rl
            if rl.overlong_filtering and all(sample.overflow for sample in ready):
                return CUT
            if rl.relu_log_p_weights and any(self._factors(sample)[0] < -LEAST for sample in ready):
                return BELOW
            if any(self._factors(sample) != (0, 0) for sample in ready):
                return TINY
            return EQUAL if rl.use_advantages else FACTOR
        reasons = Counter(EQUAL if reason == "zero_advantage" else reason for reason in dropped)
        return reasons.most_common(1)[0][0] if reasons else "refused"

    def _note_rewards(self, ready: Sequence[Sample]) -> None:
        rewards = [sample.reward for sample in ready]
        low, high = self._rewards or (rewards[0], rewards[0])
        self._rewards = min(low, *rewards), max(high, *rewards)

    def _meaning(self, reason: str) -> str:
        """What the commonest reason means, and what to do."""
        tune = self._cfg.finetune
        if reason == EQUAL:
            return (
                f"the compared samples have equal rewards{self._shown_rewards()}, so every advantage is "
                "0 and no weight changes; check how the rollout policy sets rewards, or give problems that "
                "some attempts solve and others do not"
            )
        return {
            TINY: (
                f"no weight of a sample is above {LEAST:g}, so gradients vanish; let the rollout policy give "
                "rewards that differ by about 1"
            ),
            BELOW: (
                "finetune.rl.relu_log_p_weights=true leaves out negative weights, and no sample has a "
                "positive one; set it to false, or check how the rollout policy sets rewards and which "
                "samples are dropped"
            ),
            FACTOR: "every reward is 0, so no sample has a weight; check how the rollout policy sets rewards",
            CUT: (
                "every sample was cut, and finetune.rl.overlong_filtering leaves such samples out; set "
                "finetune.rl.overlong_filtering=false, or a larger llm.parameters.max_tokens "
                f"({self._cfg.llm.parameters.max_tokens})"
            ),
            "oversize": (
                f"samples are longer than finetune.seq_length={tune.seq_length}; raise it, or lower "
                f"llm.parameters.max_tokens ({self._cfg.llm.parameters.max_tokens})"
            ),
            "masked": "the rollout policy masks every sample; leave one unmasked",
            "baseline_only": "the rollout policy gives every sample loss_weight 0; give one more",
        }.get(
            reason, f"samples are dropped before training for the reason {reason} (preprocess/preprocess.log)"
        )

    def _shown_rewards(self) -> str:
        if self._rewards is None:
            return ""
        low, high = self._rewards
        one, other = f"{low:g}", f"{high:g}"
        return f" (all {one})" if one == other else f" (each group its own, {one} to {other})"


def warn_about_role_weights(rl: RLConfig) -> None:
    """Remark weights that scale the whole loss."""
    total = sum(rl.role_weights.values())
    if rl.role_weights and abs(total - 1) > 1e-9:
        line = "finetune.rl.role_weights sum to %g, not 1; the loss is scaled by that"
        log.warning(line, total, extra=REMARK)
