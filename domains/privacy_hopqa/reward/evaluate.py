"""From a finished rollout to its training texts and metrics; the same in training and in evaluation.

The rollout policy calls it after the agent's loop has ended. It puts the outcome, the privacy scores and the
online leakage together; each of them is a module of its own beside this one.
"""

from domains.privacy_hopqa.agent.episode import Episode
from domains.privacy_hopqa.data.judge import Judge
from domains.privacy_hopqa.leakage.rules import leaks
from domains.privacy_hopqa.reward.capture import Captured, captured_calls, outcome_texts, situational_texts
from domains.privacy_hopqa.reward.metrics import PrivacyHopQAMetrics, measure
from domains.privacy_hopqa.reward.privacy import PlanPrivacy, distinct_logs, penalised, plan_logs
from domains.privacy_hopqa.reward.rewards import judge_outcome
from domains.privacy_hopqa.reward.scoring import Scorer
from domains.privacy_hopqa.settings import PrivacyHopQASettings


async def evaluate_episode(
    episode: Episode, judge: Judge, settings: PrivacyHopQASettings, scorer: Scorer
) -> tuple[list[Captured], PrivacyHopQAMetrics]:
    """Texts to train, with their rewards, and metrics. Raises PrivacyScoreFailure or TransportFailure."""
    chain = episode.chain
    outcome = judge_outcome(episode, judge, settings)
    privacy = await score_plans(episode, settings, scorer)
    if settings.situational:
        texts = situational_texts(episode.calls, settings, privacy)
    else:
        texts = outcome_texts(episode.calls, outcome.reward, settings, privacy)
    captured = len(captured_calls(episode.calls, settings))
    leakage = leaks(episode.web_queries, chain.company, chain.private_questions(settings.leakage.questions))
    return texts, measure(episode, outcome, captured, texts, privacy, leakage)


async def score_plans(
    episode: Episode, settings: PrivacyHopQASettings, scorer: Scorer
) -> dict[int, PlanPrivacy]:
    """Scores and penalties by call index; empty for a chain without private facts."""
    chain = episode.chain
    facts = chain.private_questions(settings.privacy_facts)
    plans = plan_logs(episode.calls, settings.privacy_reward_context_hops)
    # A chain of public hops alone has nothing to reveal, even where its task has private questions.
    if not facts or not plans or all(hop.source != "local" for hop in chain.hops):
        return {}
    scores = await scorer(chain, facts, distinct_logs(plans)) | {(): 0.0}
    threshold, weight = settings.privacy_reward_threshold, settings.privacy_reward_weight
    return {
        plan.call_index: penalised(
            scores[plan.direct], scores[plan.context], scores[plan.without], threshold, weight
        )
        for plan in plans
    }
