"""The options of ``rlhf sft``. Sections that it shares with ``rlhf train`` have the same names."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from rlhf_core import Config, ConfigError
from rlhf_core.config import Labels, NamedPaths, OptionTree, RunOptions, Selections, Selector
from rlhf_core.config.common import (
    ActorConfig,
    BackendSelection,
    CheckpointConfig,
    EvalSchedule,
    LogConfig,
    ModelConfig,
    NotNegative,
    Positive,
    ResumeConfig,
    RuntimeSelection,
)
from rlhf_core.contracts import Aggregation
from rlhf_core.data import ConversationColumns, SequenceOptions
from rlhf_core.plugins import Plugins


class SftData(ConversationColumns, SequenceOptions):
    train: tuple[str, ...] = Field(
        (),
        description="JSONL, CSV or Parquet files, save_to_disk folders, or hub names (NAME or NAME:CONFIG)",
    )
    shuffle: bool = Field(True, description="a new order in each epoch, from the seed")


class SftTraining(Config):
    steps: Positive | None = Field(
        None, description="optimizer updates; unset: as many as the epochs take"
    )
    epochs: Positive = Field(1, description="passes over the data, when steps is unset")
    batch_size: Positive = Field(64, description="sequences per optimizer update")
    aggregation: Aggregation = Field(
        "token-mean", description="how token losses become one number, over the whole update"
    )
    max_tokens_per_micro_batch: Positive = Field(
        16_384, description="packed tokens of one forward and backward pass"
    )
    max_skipped_updates: Positive = Field(
        3, description="updates in a row with a gradient that is not finite, then stop"
    )


class SftEvaluation(EvalSchedule):
    data: tuple[str, ...] = Field(
        (), description="held-out sets, as in data.train, with the same columns"
    )
    every: NotNegative = Field(0, description="steps between evaluations; 0: only at the end")
    at_start: bool = Field(True, description="evaluate before the first step too")
    batch_size: Positive = Field(256, description="sequences of one pass over the model")


class SftOptions(RunOptions):
    """All options of ``rlhf sft`` but those of components."""

    seed: int = Field(42, ge=0, lt=2**63, description="every random draw is a function of it")
    output: str = Field("runs/sft", min_length=1, description="run folder")
    model: ModelConfig
    data: SftData = SftData()
    train: SftTraining = SftTraining()
    actor: ActorConfig
    eval: SftEvaluation = SftEvaluation()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    resume: ResumeConfig = ResumeConfig()
    backend: BackendSelection
    runtime: RuntimeSelection


def _check(run: SftOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    for problem in _problems(run, labels):
        raise ConfigError(problem)


def _problems(run: SftOptions, labels: Labels) -> Iterator[str]:
    if not run.data.train:
        yield "--data: expected data files; got none. Add --data FILE.jsonl."
    if run.data.max_length > run.train.max_tokens_per_micro_batch:
        yield (
            f"{labels('data.max_length')} {run.data.max_length}: a sequence has to fit into one pass of "
            f"--train.max_tokens_per_micro_batch {run.train.max_tokens_per_micro_batch} tokens. Raise that, or lower "
            "the length."
        )
    best = run.checkpoint.best_metric
    names = [f"eval/{name}" for name in ("nll", "perplexity")] if run.eval.data else []
    if best is not None and best not in names:
        yield (
            f"{labels('checkpoint.best_metric')} {best}: expected a metric that this run evaluates: "
            f"{', '.join(names) or 'none without --eval.data'}"
        )


def _models(run: SftOptions) -> NamedPaths:
    yield "model.path", run.model.path


def _data(run: SftOptions) -> NamedPaths:
    yield from (("data.train", source) for source in run.data.train)
    yield from (("eval.data", source) for source in run.eval.data)


SFT = OptionTree(
    command="sft",
    purpose="Teaches a model the answers in a data set (supervised fine-tuning).",
    example="--optim NAME",
    model=SftOptions,
    selectors=(
        Selector("runtime.name", "rlhf_runtimes"),
        Selector("backend.name", "rlhf_train_backends"),
        Selector("actor.optim", "rlhf_optimizers"),
        Selector("actor.adapter", "rlhf_model_adapters"),
    ),
    check=_check,
    cautions=lambda run, selections, labels: (),
    models=_models,
    data=_data,
)
