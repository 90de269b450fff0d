"""Configuration of the actor and preprocess roles, and of the reward table."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from pipelinerl.config.base import KEPT, NULL_IS_64, OpenSection, Section


class DifficultyPenaltyConfig(Section):
    """Scales the length penalty of a sample that was not cut by how often the rollouts of its group
    succeed."""

    enabled: bool = False
    """Switches the scaling on; needs `rewards.buffer_tokens > 0`."""
    gamma: float = Field(1.0, ge=0)
    """In rollouts with success, the penalty is multiplied by the group's rate of success to this power."""
    failure_scale: float = Field(1.0, ge=0)
    """In rollouts without success, the penalty is multiplied by this number."""


class DifficultyConfig(Section):
    """Which problems are worth sampling with `actor.sampling=difficulty`."""

    metric: str = "success"
    """Metric of a rollout whose weighted mean is a problem's rate. Use `reward` if a domain has no
    success."""
    low: float = 0.1
    """Lower end of the band, in the metric's unit; both ends belong to the band."""
    high: float = 0.9
    """Upper end of the band."""
    uniform_share: float = Field(0.25, gt=0, le=1)
    """Least share of draws that go through all problems in turn, so that each is drawn again."""
    most: float = Field(2.0, ge=1)
    """No problem is more than so many times as likely as in a uniform draw."""
    newest_weight: float = Field(0.7, gt=0, le=1)
    """Weight of the newest group in a problem's rate; while `1 / groups` is larger, the rate is the mean over
    all groups."""


class ActorConfig(OpenSection):
    """Says how rollouts are played, how many run at once, and what becomes of those that fail."""

    rollout_policy: Annotated[str | None, KEPT] = None
    """Dotted path of `async f(cfg, llm, problem, session) -> RolloutResult`."""
    llm_max_rollouts: Annotated[int, NULL_IS_64] = Field(64, ge=1)
    """Most active rollouts per engine; null, the default with `hardware=gpu`: the launcher chooses
    (docs/gpu.md)."""
    rollout_workers: int = Field(1, ge=1)
    """Processes that run rollouts."""
    discount_factor: float = Field(1.0, ge=0, le=1)
    """Factor of a rollout's reward for each sampled token, for policies that use it."""
    problem_queue_size: int = Field(64, ge=1)
    """Without effect; accepted for upstream's files."""
    result_queue_size: int = Field(64, ge=1)
    """No further training group starts while so many finished ones wait to be published."""
    throughput_window_size: int = Field(50, ge=1)
    """Finished groups over which rates are averaged."""
    system_prompt: str = ""
    """System message, for policies that use it."""
    task_template: str = "{task}"
    """Template of the user message, for policies that use it; `{task}` is the question. If it has no other
    field, `{{` and `}}` are single braces."""
    domain_rollouts: Annotated[dict[str, str], KEPT] = {}
    """Rollout policy of each domain, for the dispatcher."""
    domain_mix: dict[str, float] | None = None
    """Weight of each domain when problems are drawn, 0 = never; null = uniform over problems. After 50
    finished groups, domains with fewer than their share of these are drawn more often, others less often."""
    sampling: Literal["uniform", "difficulty"] = "uniform"
    """`uniform` draws each problem with equal probability, `difficulty` prefers problems in the band of
    `actor.difficulty` and those that were never drawn; with `domain_mix`, within each domain."""
    difficulty: DifficultyConfig = DifficultyConfig()
    """Band and shares of `sampling=difficulty`."""
    difficulty_aware_penalty: DifficultyPenaltyConfig = DifficultyPenaltyConfig()
    """Length penalty scaled by difficulty."""
    max_rollout_retries: int = Field(8, ge=-1)
    """Retries after timeouts, lost connections and errors of servers; -1 = until `rollout_deadline_s`."""
    rollout_retry_initial_delay_s: float = Field(1.0, ge=0)
    """Longest first pause before a retry; doubles each time."""
    rollout_retry_max_delay_s: float = Field(30.0, ge=0)
    """Longest pause before a retry."""
    rollout_deadline_s: float = Field(3600.0, gt=0)
    """Longest time of one rollout, retries included."""
    on_rollout_error: Literal["drop_rollout", "discard_group", "stop"] = "drop_rollout"
    """After a failed training rollout, `drop_rollout` keeps its group if two are left, `discard_group` drops
    the group. `stop` ends the run after any failed rollout."""
    max_failed_fraction: float = Field(0.5, gt=0, le=1)
    """Share of the last 200 rollouts (at least 20) that may fail or, in training, have no sample; above it
    the run ends."""


class PreprocessConfig(Section):
    """Turns groups of samples into packed micro-batches."""

    input: Annotated[str, KEPT] = "actor"
    """Topic that preprocess reads."""
    output: Annotated[str, KEPT] = "training_data"
    """Topic that preprocess writes."""
    n_workers: int = Field(8, ge=1)
    """Samples that are scored at the same time, for each reference engine or address of a teacher."""
    chunk_n_groups: int = Field(2, ge=1)
    """Most groups handled at once."""
    raw_queue_size: int = Field(8, ge=1)
    """Without effect; accepted for upstream's files."""
    input_queue_size: int = Field(32, ge=1)
    """Without effect; accepted for upstream's files."""
    output_queue_size: int = Field(32, ge=1)
    """Without effect; accepted for upstream's files."""
    dataset_buffer_size: int = Field(0, ge=0)
    """Samples that preprocess collects, again and again, before it writes their steps: `ring_buffer_size`, or
    0 to write each step as soon as it is complete."""
    ring_buffer_size: int = Field(128, ge=1)
    """Samples kept without `max_lag`, at least those of a step; beyond them the oldest are dropped, or
    reading waits (`pop_old_data=false`)."""
    max_ready_samples_per_lead: int = Field(64, ge=1)
    """Published samples that are not yet trained, for each row that the trainer computes at once, above which
    preprocess waits."""
    log_every_n_samples: int = Field(128, ge=1)
    """Least number of published samples between two records of statistics."""


class TeacherConfig(Section):
    """Frozen models whose log-probabilities of the sampled tokens become advantages (docs/objective.md,
    section 1)."""

    model_path: str | None = None
    """Folder or hub name of the teacher, which preprocess holds itself; null = none."""
    url: str | None = None
    """Address of an engine that serves the teacher, such as `http://HOST:8000`; null = none."""
    by_role: dict[str, str] = {}
    """Another teacher for samples of a role: its folder, hub name or address."""
    by_domain: dict[str, str] = {}
    """Another teacher for samples of a domain, if their role has none."""
    weight: float = Field(1.0, gt=0)
    """Factor of log p_teacher - log p_policy."""
    with_rewards: bool = False
    """Add the teacher's advantage to the advantage from rewards; false: use only the teacher's advantage."""
    deadline_s: float = Field(600.0, gt=0)
    """Longest wait for the scores of a chunk of groups from an address; then the run ends."""

    @field_validator("by_role", "by_domain", mode="before")
    @classmethod
    def _null_is_empty(cls, given: Any) -> Any:
        """On a command line a mapping can be emptied by null only."""
        return {} if given is None else given

    @property
    def places(self) -> dict[str, str]:
        """Folder, hub name or address of each teacher: `default`, `role/NAME`, `domain/NAME`."""
        default = self.url or self.model_path
        found = {} if default is None else {"default": default}
        found |= {f"role/{role}": place for role, place in self.by_role.items()}
        return found | {f"domain/{domain}": place for domain, place in self.by_domain.items()}

    @property
    def urls(self) -> list[str]:
        """Addresses, each once."""
        return [place for place in dict.fromkeys(self.places.values()) if is_address(place)]

    @property
    def paths(self) -> list[str]:
        """Folders and hub names of those that preprocess holds, each once."""
        return [place for place in dict.fromkeys(self.places.values()) if not is_address(place)]

    @property
    def alone(self) -> bool:
        """Whether rewards have no part in the advantages."""
        return bool(self.places) and not self.with_rewards


def is_address(place: str) -> bool:
    """Whether a teacher is asked over HTTP."""
    return place.startswith(("http://", "https://"))


class RewardsConfig(Section):
    """Reward by status of the answer and by whether the sample ended by itself, for policies that use it."""

    correct_answer_finished: float = 1.0
    """Right answer, sample finished."""
    correct_answer_not_finished: float = 1.0
    """Right answer, sample cut."""
    wrong_answer_finished: float = 0.0
    """Wrong answer, sample finished."""
    wrong_answer_not_finished: float = 0.0
    """Wrong answer, sample cut."""
    no_answer_finished: float = 0.0
    """No answer, sample finished."""
    no_answer_not_finished: float = 0.0
    """No answer, sample cut."""
    unparsable_finished: float = 0.0
    """Answer that cannot be parsed, sample finished."""
    unparsable_not_finished: float = 0.0
    """Answer that cannot be parsed, sample cut."""
    buffer_tokens: int = Field(0, ge=0)
    """Number of last tokens before the length limit over which a penalty grows; 0 = no penalty."""


class SubsetConfig(Section):
    """A slice of the training problems."""

    begin: int = Field(0, ge=0)
    """First problem."""
    end: int | None = Field(None, ge=1)
    """One past the last problem; null = all."""


EnvironmentSpec = dict[str, Any]
