"""The options that belong to no component. Flags, TOML keys and help are derived from these models.

A field whose path is in ``train.SLOTS`` picks components. A component's own options stand beside that field, in the
section named after the component, and are validated with the component's own model.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core.component import Config
from rlhf_core.contracts.backend import Aggregation
from rlhf_core.contracts.executor import ControlWordUse

from .common import (
    CONTROL_WORDS,
    FORM,
    SETS,
    TEMPLATE_KWARGS,
    BackendSelection,
    CheckpointConfig,
    EngineSelection,
    FormName,
    HeldOutRows,
    ImageData,
    LogConfig,
    NotNegative,
    ObserversConfig,
    PaddingSampling,
    Positive,
    Probability,
    ResumeConfig,
    RunOptions,
    SamplingOptions,
    SeeingActor,
    SeeingModel,
    SleepingRuntime,
    TemplateVariables,
    TrainedRole,
)


class PromptData(Config):
    """Sets of prompts."""

    train: tuple[str, ...] = Field(
        (),
        description=SETS,
    )
    split: str = Field("train", description="split of folders and hub sets that have several")
    form: FormName | None = Field(None, description=FORM)
    prompt_key: str = Field(
        "prompt", description="column with the prompt: text, or a list of chat messages"
    )
    template: str | None = Field(
        None,
        description="format string over the row's columns that makes the prompt, e.g. 'Q: {question}\\nA:'",
    )
    system_prompt: str | None = Field(
        None, description="put before the conversation; needs a chat prompt"
    )
    chat: bool = Field(
        False, description="render text prompts as one user message with the model's chat template"
    )
    max_prompt_tokens: Positive = Field(1024, description="longer prompts are bad rows")
    max_samples: Positive | None = Field(None, description="use only the first rows of each set")
    on_bad_row: Literal["fail", "skip"] = Field(
        "fail", description="fail before anything is built, or skip and count"
    )
    control_words: ControlWordUse = Field("text", description=CONTROL_WORDS)
    chat_template_kwargs: TemplateVariables = Field(
        default_factory=dict, description=TEMPLATE_KWARGS
    )


class DataConfig(ImageData, PromptData):
    source: str | None = Field(
        None,
        description="where rows come from in the place of train: NAME, or FILE.py:NAME for a function of your own",
    )
    probabilities: tuple[Probability, ...] = Field(
        (), description="mix the sets with these shares; without it they are concatenated"
    )
    shuffle: bool = Field(True, description="a new order in each epoch, from the seed")
    sampler: str | None = Field(
        None, description="what chooses the next prompts; unset: each one once an epoch"
    )


class RolloutConfig(PaddingSampling, SamplingOptions):
    executor: str = Field(description="who turns a task into trajectories")
    filters: tuple[str, ...] = Field((), description="sample filters, in this order")
    batch_size: Positive = Field(64, description="prompts per step")
    n_samples_per_prompt: Positive = Field(8, description="episodes per prompt: the group size")
    temperature: float = Field(
        1.0, gt=0.0, le=10.0, description="sampling temperature; also applied in training"
    )
    stop: tuple[str, ...] = Field((), description="strings that end a turn")
    min_new_tokens: NotNegative = Field(0, description="per turn")
    max_new_tokens: Positive = Field(256, description="per turn")
    max_length: Positive | None = Field(
        None,
        description="prompt, actions and environment text together; max_prompt_tokens + max_new_tokens when unset",
    )
    compared_share: Probability = Field(
        0.0625,
        description="share of a step's prompts, at least one, whose samples carry the sampler's log-probs for the "
        "mismatch metrics; all do where a component needs them, or where the engine computes them anyway",
    )
    max_mismatch: float | None = Field(
        0.2,
        gt=0.0,
        description="end the run if log-probs of sampler and trainer differ by more nats a token on average, for equal "
        "weights and the same distribution; none: do not",
    )
    check_weights: bool = Field(
        True,
        description="after each update, compare a digest of what the engine serves with the trainer's weights",
    )
    max_refills: NotNegative = Field(
        4, description="times a step may draw more prompts to replace what its filters dropped"
    )
    max_staleness: int = Field(
        0,
        ge=0,
        le=64,
        description="versions by which the weights that sampled a token may be older than those that are trained on "
        "it; 0 is on-policy, more lets generation run ahead",
    )
    in_flight_updates: bool = Field(
        False,
        description="swap weights under running requests instead of waiting for them; needs max_staleness",
    )
    oversampling: float = Field(
        1.0,
        ge=1.0,
        le=8.0,
        description="take a step's prompts from this many times as many, those that are complete first",
    )
    concurrency: Positive | None = Field(
        None, description="prompts that are played at the same time at most; all when unset"
    )
    drawn_images_gib: float = Field(
        50.0,
        gt=0.0,
        description="room in the run folder for images that environments and agents draw; beyond it the oldest go that "
        "no sample in work needs",
    )


class AdvantageSection(Config):
    estimator: str = Field(description="from rewards to advantages")


class LossSection(Config):
    policy: str = Field(description="the policy loss")
    aggregation: Literal["auto", Aggregation] = Field(
        "auto",
        description="how token losses become one number, over the whole optimizer step; auto: what the loss or the "
        "estimator was published with, else token-mean",
    )
    entropy_coef: float = Field(
        0.0, ge=0.0, le=1.0, description="entropy bonus; where it starts if there is a target"
    )
    entropy_target: float | None = Field(
        None,
        gt=0.0,
        description="adapt the bonus so that the entropy (nats per token) does not fall below this",
    )
    entropy_step: float = Field(
        0.005, gt=0.0, le=1.0, description="by how much a step may change the adapted bonus"
    )
    old_logprobs: Literal["auto", "reuse", "recompute", "rollout"] = Field(
        "auto",
        description="where the ratio's denominator comes from: the first update's own forward pass, an extra pass, "
        "or the sampler; auto takes the cheapest that is exact",
    )


class CorrectionSection(Config):
    kind: str | None = Field(
        None, description="importance-sampling correction between sampler and trainer"
    )
    replay_routes: bool = Field(
        False,
        description="mixtures of experts: the policy sends each token to the experts that the engine chose for it, "
        "with weights of its own routers (R3)",
    )


class KlSection(Config):
    mode: Literal["reward", "loss"] = Field(
        "reward", description="penalize the reward, or add a loss term"
    )
    coef: float = Field(
        0.0, ge=0.0, le=100.0, description="0: no KL, and no reference model for it"
    )
    estimator: str = Field(
        description="per-token estimator of KL(policy || reference); its options, if any, are in the section named "
        "after it"
    )
    tail: Literal["linear", "clamp"] = Field(
        "linear",
        description="as a loss, beyond 10 nats: linear: go on along the tangent, so that far tokens are still pulled "
        "back; clamp: stay at 10 without a gradient, as OpenRLHF and verl do",
    )
    unbiased_gradient: bool = Field(
        False,
        description="as a loss: keep the estimator's value, but use the gradient of the KL itself",
    )
    target: float | None = Field(
        None, gt=0.0, description="adapt the coefficient towards this mean KL per token"
    )
    horizon: Positive = Field(
        10_000, description="sequences over which the adaptive coefficient may change by a fifth"
    )


class TermsSection(Config):
    use: tuple[str, ...] = Field(
        (),
        description="further losses, each added with its weight and averaged over its own tokens",
    )


class TeacherSection(Config):
    path: str | None = Field(
        None,
        description="model to distill from, for losses that need a teacher; or a PEFT folder, which names its base",
    )
    top_k: Positive = Field(
        64, description="the teacher's most probable tokens that losses over several tokens see"
    )


class AlgoConfig(Config):
    advantage: AdvantageSection
    loss: LossSection
    kl: KlSection
    terms: TermsSection = Field(default_factory=TermsSection)
    correction: CorrectionSection = Field(default_factory=CorrectionSection)
    teacher: TeacherSection = Field(default_factory=TeacherSection)


class CriticConfig(TrainedRole):
    path: str | None = Field(None, description="value model; the policy's when unset")
    value_clip: float | None = Field(
        0.5, gt=0.0, description="clip range around the old values; none: do not"
    )
    warmup_steps: NotNegative = Field(0, description="first steps that train the critic alone")


class ReferenceConfig(Config):
    path: str | None = Field(
        None,
        description="reference model for the KL, or a PEFT folder, which names its base; the initial policy when unset",
    )


class SupervisedConfig(Config):
    data: tuple[str, ...] = Field(
        (), description="sets of good responses, as in data.train, for terms that imitate them"
    )
    prompt_key: str = Field(
        "prompt", description="column with the prompt: text, or a list of chat messages"
    )
    response_key: str = Field("response", description="column with the text to imitate")
    batch_size: Positive = Field(64, description="responses per optimizer update")


class EnvironmentsConfig(Config):
    use: tuple[str, ...] = Field(
        (),
        description="what answers the policy between its turns: NAME or FILE.py:CLASS; NAME=0.7 gives a share of the "
        "tasks, LABEL=NAME another section for the options",
    )


class RewardConfig(Config):
    use: tuple[str, ...] = Field(
        (), description="rewards, added with their weights; FILE.py:NAME for your own function"
    )
    shapers: tuple[str, ...] = Field((), description="reward shapers, in this order")


class TrainConfig(Config):
    steps: Positive | None = Field(
        None, description="rollout batches; unset: as many as the epochs take"
    )
    epochs: Positive = Field(1, description="passes over the data, when steps is unset")
    batch_size: Positive | None = Field(
        None,
        description="sequences per optimizer update; unset: the whole rollout batch in one update",
    )
    inner_epochs: Positive = Field(1, description="passes over each rollout batch")
    max_tokens_per_micro_batch: Positive = Field(
        16_384,
        description="packed tokens of one forward and backward pass; those that several sequences share count once",
    )
    max_skipped_updates: Positive = Field(
        3, description="updates in a row with a gradient that is not finite, then stop"
    )
    max_empty_steps: Positive = Field(
        10,
        description="steps in a row without an update, because filters and rewards dropped all, then stop; half of "
        "them warn",
    )


class EvalConfig(HeldOutRows):
    environment_split: str | None = Field(
        "eval",
        min_length=1,
        description="split of the environments' own tasks to evaluate on, without eval.data and eval.fraction",
    )
    every: NotNegative = Field(0, description="steps between evaluations; 0: only at the end")
    at_start: bool = Field(True, description="evaluate before the first step too")
    n_samples: Positive = Field(
        1, description="episodes per prompt; pass@k for k = 1, 2, 4, ... up to it"
    )
    temperatures: tuple[float, ...] = Field(
        (0.0,), min_length=1, description="evaluate at each of these; 0 is greedy"
    )
    metrics: tuple[str, ...] = Field(
        (), description="further metrics of the episodes, each with its own section of options"
    )
    pass_threshold: float = Field(1.0, description="a sample passes if its reward is at least this")


class RunConfig(RunOptions):
    """All options of ``rlhf train`` but those of components."""

    preset: str | None = Field(
        None, description="options of a published method, below those of files and flags"
    )
    seed: int = Field(42, ge=0, lt=2**63, description="every random draw is a function of it")
    output: str = Field("runs/run", min_length=1, description="run folder")
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
    def may_play_held_out(self) -> bool:
        """Whether the environments' own held-out tasks are evaluated on, if no rows are and they make some."""
        return bool(self.env.use and self.eval.environment_split)
