"""How long the privacy agent's complete prompts are for a tokenizer, and how the scripts play in them.

    python -m benchmarks.privacy_prompts [--model results/smollm2] [--chains 344] [--seeds 0 1] [--out FILE]

Scripted play on the held-out chains of the worlds that `benchmarks.gpu.privacy_language` evaluates on, with
the settings of `+preset=privacy_hopqa_pretrained`: tokens of every prompt and answer by stage, chat template
included; how many choices are among cards of which none is the right document; success and leakage (by the
rules) of the imperfect script that a model imitates and of a careful one, with 95 % bootstrap intervals over
chains.
"""

import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks._figures import RESULTS, Figure, at_most, command_line, report
from domains.privacy_hopqa.agent.interfaces import ChooseContext, Completion, Stage, StageRequest
from domains.privacy_hopqa.data.chains import Chain
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.leakage.report import Secrets, rule_based
from domains.privacy_hopqa.settings import PrivacyHopQASettings, settings_of
from domains.privacy_hopqa.teacher.inprocess import simulate
from domains.privacy_hopqa.teacher.script import CAREFUL, MIXTURES, ScriptedModel
from domains.privacy_hopqa.world import build, chains_of, world_config, world_store
from pipelinerl.base.tokenizing import encode, load_tokenizer, render_chat
from pipelinerl.config.compose import compose
from pipelinerl.observe.intervals import bootstrap

PRESET = ["+domain=privacy_hopqa", "hardware=gpu", "+preset=privacy_hopqa_pretrained"]
SCRIPTS = {"imperfect": MIXTURES["full"], "careful": CAREFUL}


@dataclass
class Heard(ScriptedModel):
    """The scripted model, with every call beside its answer."""

    calls: list[tuple[StageRequest, str]] = field(default_factory=list)

    async def complete(self, request: StageRequest) -> Completion:
        answer = await super().complete(request)
        self.calls.append((request, answer.text))
        return answer


def played(
    settings: PrivacyHopQASettings, script: str, seed: int, count: int
) -> Iterator[tuple[Chain, Heard, bool, bool]]:
    """Each held-out chain, who played it, whether all answers are right, and whether its queries leak."""
    world = build(world_config(**settings.world | {"seed": seed, "test_chains": count}))
    store = world_store(world)
    for index, chain in enumerate(chains_of(world, "test")):
        model = Heard(chain, "mixture", random.Random(f"{seed}:{index}"), "full", SCRIPTS[script])
        episode, judge = simulate(chain, store, settings, model), Judge(chain)
        right = all(judge.correct(hop.hop_number, hop.answer) for hop in episode.hops)
        secrets = Secrets(chain.company, chain.private_questions("chain"))
        yield chain, model, right, rule_based(episode.web_queries, secrets).headline


def without_gold(chain: Chain, model: Heard) -> list[bool]:
    """Of each choice, whether the right document is not among the cards."""
    asked = [one.context for one, _ in model.calls if isinstance(one.context, ChooseContext)]
    gold = [chain.hop(one.view.hop_number).gold_values for one in asked]
    return [{card.doc_id for card in one.cards}.isdisjoint(of) for one, of in zip(asked, gold, strict=True)]


def figures_of(tokenizer: Any, settings: PrivacyHopQASettings, options: Any) -> Iterator[Figure]:
    """Lengths by stage of the imperfect script, then what each script reaches."""
    prompts: dict[Stage, list[int]] = defaultdict(list)
    answers: dict[Stage, list[int]] = defaultdict(list)
    reached: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    rollouts, absent = 0, list[bool]()
    for script in SCRIPTS:
        for seed in options.seeds:
            for chain, model, right, leak in played(settings, script, seed, options.chains):
                reached[script].append((right, leak))
                if script != "imperfect":
                    continue
                rollouts += 1
                absent += without_gold(chain, model)
                for request, answer in model.calls:
                    text = render_chat(tokenizer, request.prompt.messages)
                    prompts[request.stage].append(len(encode(tokenizer, text)))
                    answers[request.stage].append(len(encode(tokenizer, answer)) + 1)  # with its end
    limit, margin = settings.generation_context_limit_tokens, settings.generation_context_margin_tokens
    for stage in Stage:
        lengths, cap = prompts[stage], settings.stage_max_tokens(stage)
        yield Figure(f"{stage}: calls of a rollout", len(lengths) / rollouts, "calls")
        yield Figure(f"{stage}: prompt, mean", float(np.mean(lengths)), "tokens")
        yield at_most(f"{stage}: prompt, longest", max(lengths), "tokens", limit - margin - cap)
        yield Figure(f"{stage}: answer, mean", float(np.mean(answers[stage])), "tokens")
        yield at_most(f"{stage}: answer, longest", max(answers[stage]), "tokens", cap)
    yield Figure("choices without the right document", float(np.mean(absent)), "share")
    yield Figure("prompts of a rollout", sum(map(sum, prompts.values())) / rollouts, "tokens")
    for script, pairs in reached.items():
        for column, metric in enumerate(("success", "leakage")):
            one = bootstrap(np.array([pair[column] for pair in pairs], np.float64))
            yield Figure(f"{script} script: {metric}", one.mean, "share")
            yield Figure(f"{script} script: {metric}, lower end", one.low, "share")
            yield Figure(f"{script} script: {metric}, upper end", one.high, "share")


def main() -> int:
    options = command_line(__doc__)
    tokenizer = load_tokenizer(str(options.model))
    settings = settings_of(compose(PRESET).tree)
    said = {"model": options.model.name, "chains": options.chains, "seeds": str(options.seeds)}
    out = options.out or RESULTS / "privacy_prompts.json"
    return 1 if report("privacy_prompts", figures_of(tokenizer, settings, options), said, out) else 0


if __name__ == "__main__":
    sys.exit(main())
