"""The options that belong to no component. Flags, TOML keys and help are derived from these models.

A field whose path is in ``train.SLOTS`` picks components. A component's own options stand beside that field, in the
section named after the component, and are validated with the component's own model.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field

from rlhf_core.component import Config
from rlhf_core.contracts.backend import Aggregation

from .common import (
    MICRO_BATCH,
    BackendSelection,
    CheckpointConfig,
    EngineSelection,
    LogConfig,
    NotNegative,
    ObserversConfig,
    PaddingSampling,
    Positive,
    Probability,
    ReferenceSync,
    ResumeConfig,
    RunOptions,
    SamplingOptions,
    SeeingActor,
    SeeingModel,
    SleepingRuntime,
    TrainedRole,
    with_room,
)
from .evaluation import EvalConfig as EvalConfig
from .pinned_models import HubModel
from .prompts import DataConfig as DataConfig
from .prompts import PromptData as PromptData


class RolloutConfig(PaddingSampling, SamplingOptions):
    executor: str = Field(
        description="component that plays a task with the policy and returns what was said as trajectories"
    )
    filters: tuple[str, ...] = Field(
        (),
        description="components that drop samples before training, in this order; unset: none is dropped",
    )
    batch_size: Positive = Field(64, description="number of prompts per step")
    n_samples_per_prompt: Positive = Field(
        8, description="number of episodes per prompt, which form a group"
    )
    temperature: float = Field(
        1.0,
        gt=0.0,
        le=10.0,
        description="sampling temperature, above 0; log-probs in training have the same temperature",
    )
    stop: tuple[str, ...] = Field((), description="texts that end a turn of the policy")
    min_new_tokens: NotNegative = Field(
        0,
        description="number of first tokens of a turn without end-of-sequence, in which texts of stop are ignored",
    )
    max_new_tokens: Positive = Field(
        256, description="largest number of tokens in a turn of the policy"
    )
    max_length: Positive | None = Field(
        None,
        description="largest number of tokens of a sequence: prompt, policy and environment together; unset: "
        "max_prompt_tokens + max_new_tokens",
    )
    compared_share: Probability = Field(
        0.0625,
        description="share of a step's prompts, at least one, for which the engine also gives log-probs for mismatch "
        "metrics; all prompts if a component needs them or they cost nothing",
    )
    max_mismatch: float | None = Field(
        0.2,
        gt=0.0,
        description="end the run if log-probs of sampler and trainer differ by more than this many nats per token on "
        "average, with equal weights; none: never",
    )
    check_weights: bool = Field(
        True,
        description="after each update, compare digests of the engine's and the trainer's weights, and end the run "
        "if they differ",
    )
    max_refills: NotNegative = Field(
        4,
        description="number of times that a step may draw more prompts to replace those that filters dropped",
    )
    max_staleness: int = Field(
        0,
        ge=0,
        le=64,
        description="number of versions, up to 64, by which the weights that sampled a token may be older than those "
        "trained on it; 0: on-policy; more: generation runs ahead",
    )
    in_flight_updates: bool = Field(
        False,
        description="give the engine new weights while requests run; false: wait until they end. Needs max_staleness",
    )
    oversampling: float = Field(
        1.0,
        ge=1.0,
        le=8.0,
        description="start this many times as many prompts as a step needs, from 1 to 8; the step takes those that "
        "finish first",
    )
    concurrency: Positive | None = Field(
        None, description="largest number of prompts that are played at the same time; unset: all"
    )
    drawn_images_gib: float = Field(
        50.0,
        gt=0.0,
        description="GiB in the run folder for images that environments and agents draw; beyond it the oldest that "
        "no sample in work needs are deleted",
    )


class AdvantageSection(Config):
    estimator: str = Field(description="component that turns rewards into advantages")


class LossSection(Config):
    policy: str = Field(description="component that computes the policy loss")
    aggregation: Literal["auto", Aggregation] = Field(
        "auto",
        description="how the token losses of an optimizer step become one number; auto: as the loss or the estimator "
        "was published, else token-mean",
    )
    entropy_coef: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        description="coefficient of the entropy bonus, from 0 to 1; with entropy_target it is the coefficient at the "
        "start",
    )
    entropy_target: float | None = Field(
        None,
        gt=0.0,
        description="entropy in nats per token below which the policy should not fall; the bonus adapts to it. "
        "Unset: the bonus is fixed",
    )
    entropy_step: float = Field(
        0.005, gt=0.0, le=1.0, description="largest change of the adapted coefficient in one step"
    )
    old_logprobs: Literal["auto", "reuse", "recompute", "rollout"] = Field(
        "auto",
        description="source of the ratio's denominator: reuse the first update's forward pass, recompute it in an "
        "extra pass, or take the sampler's (rollout); auto: the cheapest exact one",
    )
    mask_truncated: bool = Field(
        False,
        description="leave samples that were cut off out of the updates; their rewards still count in the baselines of "
        "their groups",
    )
    top_entropy: float = Field(
        1.0,
        ge=0.0,
        le=1.0,
        description="share of an update's action tokens that the policy loss trains on: those with the highest "
        "entropy before the step's updates; 1: all; 0.2 in arXiv:2506.01939. The others count in the mean, with 0",
    )
    off_policy_mask: float | None = Field(
        None,
        gt=0.0,
        le=20.0,
        description="sequences with a negative advantage do not train the policy loss if the sampler's log-probs are, "
        "averaged over tokens, more than this many nats above the policy's (arXiv:2512.02556); unset: all do",
    )


class CorrectionSection(Config):
    kind: str | None = Field(
        None,
        description="component that corrects for the difference between sampler and trainer by importance sampling; "
        "unset: no correction",
    )
    replay_routes: bool = Field(
        False,
        description="mixture of experts: send each token to the experts that the engine chose, weighted by the "
        "policy's own routers (R3); false: the policy's routers choose",
    )


class KlSection(Config):
    mode: Literal["reward", "loss"] = Field(
        "reward",
        description="reward: subtract the penalty from the reward; loss: add it to the loss",
    )
    coef: float = Field(
        0.0,
        ge=0.0,
        le=100.0,
        description="coefficient of the KL penalty, from 0 to 100; 0: no KL, and no reference model for it",
    )
    estimator: str = Field(
        description="component that estimates KL(policy || reference) per token; its options are in the section "
        "named after it"
    )
    tail: Literal["linear", "clamp"] = Field(
        "linear",
        description="mode loss, beyond 10 nats: linear goes on along the tangent, which pulls far tokens back; clamp "
        "stays at 10 without a gradient, as in OpenRLHF and verl",
    )
    unbiased_gradient: bool = Field(
        False,
        description="mode loss: keep the estimator's value, but use the gradient of the KL itself",
    )
    target: float | None = Field(
        None,
        gt=0.0,
        description="mean KL per token that the coefficient adapts to, in nats; unset: the coefficient is fixed",
    )
    horizon: Positive = Field(
        10_000,
        description="number of sequences over which the adapted coefficient may change by a fifth",
    )


class TermsSection(Config):
    use: tuple[str, ...] = Field(
        (),
        description="further losses; each is averaged over its own tokens and added with its weight",
    )


class TeacherSection(Config):
    path: HubModel | None = Field(
        None,
        description="model that losses with a teacher distill from: folder or hub name, or a PEFT folder, which "
        "names its base",
    )
    top_k: Positive = Field(
        64,
        description="number of the teacher's most probable tokens that losses over several tokens use",
    )


class AlgoConfig(Config):
    advantage: AdvantageSection
    loss: LossSection
    kl: KlSection
    terms: TermsSection = Field(default_factory=TermsSection)
    correction: CorrectionSection = Field(default_factory=CorrectionSection)
    teacher: TeacherSection = Field(default_factory=TeacherSection)


class CriticConfig(TrainedRole):
    path: HubModel | None = Field(
        None, description="folder or hub name of the value model; unset: the policy's"
    )
    value_clip: float | None = Field(
        0.5,
        gt=0.0,
        description="range around the old value that a new value is clipped to in the critic's loss; none: no "
        "clipping",
    )
    warmup_steps: NotNegative = Field(
        0, description="number of steps at the start that train the critic alone"
    )


class ReferenceConfig(ReferenceSync):
    path: HubModel | None = Field(
        None,
        description="reference model for the KL: folder or hub name, or a PEFT folder, which names its base; unset: "
        "the initial policy",
    )


class SupervisedConfig(Config):
    data: tuple[str, ...] = Field(
        (),
        description="sets of good responses, named as in data.train, for loss terms that imitate them",
    )
    prompt_key: str = Field(
        "prompt", description="column with the prompt, which is text or a list of chat messages"
    )
    response_key: str = Field("response", description="column with the response to imitate")
    batch_size: Positive = Field(64, description="number of given responses per optimizer update")


class EnvironmentsConfig(Config):
    use: tuple[str, ...] = Field(
        (),
        description="environments that answer the policy between its turns: NAME or FILE.py:CLASS; NAME=0.7 gives a "
        "share of the tasks, LABEL=NAME another section for the options",
    )


class RewardConfig(Config):
    use: tuple[str, ...] = Field(
        (),
        description="rewards that score each sample, summed with their weights: NAME, or FILE.py:NAME for your own "
        "function",
    )
    shapers: tuple[str, ...] = Field(
        (),
        description="components that change rewards before anything else sees them, in this order; unset: none",
    )


class TrainConfig(Config):
    steps: Positive | None = Field(
        None,
        description="number of steps, each with one rollout batch; unset: as many as train.epochs take",
    )
    epochs: Positive = Field(1, description="number of passes over the data, if steps is unset")
    batch_size: Positive | None = Field(
        None,
        description="number of sequences per optimizer update; unset: one update with the whole rollout batch",
    )
    inner_epochs: Positive = Field(1, description="number of passes over each rollout batch")
    max_tokens_per_micro_batch: Positive = Field(16_384, description=MICRO_BATCH)
    max_skipped_updates: Positive = Field(
        3,
        description="number of updates in a row with a gradient that is not finite after which the run ends; fewer "
        "are skipped",
    )
    max_empty_steps: Positive = Field(
        10,
        description="number of steps in a row that learn from no reward, as all groups were dropped, after which the "
        "run ends; half of them give a warning",
    )


class RunConfig(RunOptions):
    """All options of ``rlhf train`` but those of components."""

    preset: str | None = Field(
        None,
        description="published method whose options the run takes; those of your files and flags win. Unset: no "
        "preset",
    )
    seed: int = Field(42, ge=0, lt=2**63, description="seed of all random draws of the run")
    output: str = Field("runs/run", min_length=1, description="folder for all files of the run")
    model: SeeingModel
    data: DataConfig = Field(default_factory=DataConfig)
    rollout: RolloutConfig
    env: EnvironmentsConfig = Field(default_factory=EnvironmentsConfig)
    reward: RewardConfig = Field(default_factory=RewardConfig)
    algo: AlgoConfig
    actor: SeeingActor
    critic: CriticConfig
    ref: ReferenceConfig = Field(default_factory=ReferenceConfig)
    supervised: SupervisedConfig = Field(default_factory=SupervisedConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    eval: EvalConfig = Field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    observers: ObserversConfig = Field(default_factory=ObserversConfig)
    log: LogConfig = Field(default_factory=LogConfig)
    resume: ResumeConfig = Field(default_factory=ResumeConfig)
    engine: EngineSelection
    backend: BackendSelection
    runtime: SleepingRuntime

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence that the run may train on."""
        return self.rollout.max_length or self.data.max_prompt_tokens + self.rollout.max_new_tokens

    @property
    def longest_held_out(self) -> int:
        """Tokens of the longest sequence of its evaluations, which the engine alone reads; 0: there are none."""
        if not (self.eval.holds_rows_out or self.may_play_held_out):
            return 0
        answer = self.eval.max_new_tokens or self.rollout.max_new_tokens
        longest = self.eval.max_length or self.rollout.max_length
        return longest or self.data.max_prompt_tokens + answer

    def settled(self) -> Self:
        """Return the options in which micro-batches that nobody has set hold the longest sequence."""
        return self.model_copy(update={"train": with_room(self.train, self.longest_sequence)})

    @property
    def may_play_held_out(self) -> bool:
        """Whether the environments' own held-out tasks are evaluated on, if no rows are and they make some."""
        return bool(self.env.use and self.eval.environment_split)
