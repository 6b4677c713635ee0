"""Options that the commands share. Sections that ``rlhf train`` has too have the same names there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from pydantic import Field

from rlhf_config import (
    Labels,
    NamedPaths,
    RunOptions,
    Selections,
    Selector,
    check_dtypes,
    held_out_paths,
    held_out_problems,
    held_out_without_effect,
    images_without_effect,
    length_without_effect,
    metric_problems,
    mix_problems,
    no_reader,
    refuse_typed,
    schedule_without_effect,
    shared_without_effect,
    small_adapter_rates,
    splits_without_effect,
)
from rlhf_config.common import (
    MICRO_BATCH,
    TOKEN_CACHE,
    BackendSelection,
    CheckpointConfig,
    HeldOutRows,
    ImageData,
    LogConfig,
    NotNegative,
    ObserversConfig,
    Positive,
    Probability,
    ResumeConfig,
    RuntimeSelection,
    SeeingActor,
    SeeingModel,
    TrainSets,
    with_room,
)
from rlhf_core import CapabilityError, Config, ConfigError
from rlhf_core.capabilities import BACKEND_SEES, RUNTIME_SEES
from rlhf_core.contracts import PlansPlacement
from rlhf_data import SequenceOptions, set_names

POLICY, REWARD_MODEL = "policy", "reward_model"
SOURCE_SET = "source"
"""Name of the set of rows that were drawn of ``data.source``."""
TRAINED_ROLES = {"rm": REWARD_MODEL, "prm": REWARD_MODEL}
"""Command -> the role that learns, where that is not the policy."""


class ExampleData(ImageData, SequenceOptions, TrainSets):
    source: str | None = Field(
        None,
        description="component that gives the rows instead of data.train: NAME, or FILE.py:NAME for a function of "
        "your own; before training max_samples rows, or as many as steps take, are written into the run folder",
    )
    probabilities: tuple[Probability, ...] = Field(
        (),
        description="share of each set of data.train in the mix of all; unset: the sets are joined as they are",
    )
    shuffle: bool = Field(
        True,
        description="put the rows into a new order in each epoch, drawn from the seed; false: they keep their order",
    )
    cache: str = Field("auto", min_length=1, description=TOKEN_CACHE)


class ExampleTraining(Config):
    steps: Positive | None = Field(
        None, description="number of optimizer updates; unset: as many as train.epochs take"
    )
    epochs: Positive = Field(1, description="number of passes over the data, if steps is unset")
    batch_size: Positive = Field(
        64,
        description="number of conversations, solutions, answers, or pairs of answers, per optimizer update",
    )
    max_tokens_per_micro_batch: Positive = Field(16_384, description=MICRO_BATCH)
    max_skipped_updates: Positive = Field(
        3,
        description="number of updates in a row with a gradient that is not finite after which the run ends; fewer "
        "are skipped",
    )


class HeldOut(HeldOutRows):
    every: NotNegative = Field(
        0, description="number of steps between evaluations; 0: only at the end"
    )
    at_start: bool = Field(
        True, description="evaluate before the first step too; false: first after eval.every steps"
    )
    batch_size: Positive = Field(256, description="number of sequences in one pass over the model")


class ExampleOptions(RunOptions):
    """The options of a command but those of components. A command gives ``data`` its columns."""

    seed: int = Field(42, ge=0, lt=2**63, description="seed of all random draws of the run")
    output: str = Field("runs/run", min_length=1, description="folder for all files of the run")
    model: SeeingModel
    data: ExampleData = ExampleData()
    train: ExampleTraining = ExampleTraining()
    actor: SeeingActor
    eval: HeldOut = HeldOut()
    checkpoint: CheckpointConfig = CheckpointConfig()
    observers: ObserversConfig = ObserversConfig()
    log: LogConfig = LogConfig()
    resume: ResumeConfig = ResumeConfig()
    backend: BackendSelection
    runtime: RuntimeSelection

    def settled(self) -> Self:
        """Return the options in which micro-batches that nobody has set hold the longest sequence."""
        return self.model_copy(update={"train": with_room(self.train, self.data.max_length)})


SELECTORS = (
    Selector("runtime.name", "rlhf_runtimes"),
    Selector("backend.name", "rlhf_train_backends"),
    Selector("data.source", "rlhf_data_sources"),
    Selector("model.vision", "rlhf_vision_models"),
    Selector("actor.optim", "rlhf_optimizers"),
    Selector("actor.lr_schedule", "rlhf_lr_schedules"),
    Selector("actor.adapter", "rlhf_model_adapters"),
    Selector("observers.use", "rlhf_observers", many=True),
    Selector("log.to", "rlhf_loggers", many=True),
)


def check(
    run: ExampleOptions, selections: Selections, labels: Labels, evaluated: Sequence[str]
) -> None:
    """Refuse options that contradict each other.

    Args:
        evaluated: metrics that the command gives for held-out sets, without ``eval/``.

    Raises:
        ConfigError: names the options and what to change.
        CapabilityError: the components do not go together, or not with the model.
    """
    for problem in _problems(run, selections, labels, evaluated):
        raise problem
    _check_images(run, selections, labels)
    check_dtypes(run.model, selections, labels)
    refuse_typed(_without_effect(run, selections), labels)


def _problems(
    run: ExampleOptions, selections: Selections, labels: Labels, evaluated: Sequence[str]
) -> Iterator[ConfigError]:
    sets_of_run = sets(run)
    if not sets_of_run:
        yield ConfigError(
            "--data: expected data files; got none. Add --data FILE.jsonl.", code="config/no-data"
        )
    yield from _source_problems(run, labels)
    if run.data.max_length > run.train.max_tokens_per_micro_batch:
        yield ConfigError(
            f"{labels('data.max_length')} {run.data.max_length}: a sequence has to fit into one pass of "
            f"--train.max_tokens_per_micro_batch {run.train.max_tokens_per_micro_batch} tokens. Raise that, or lower "
            "the length.",
            code="config/pass-too-small",
        )
    yield from held_out_problems(run.eval, sets_of_run, labels)
    yield from mix_problems(run.data.probabilities, run.data.train, labels)
    held = set_names(run.eval, sets_of_run)
    folders = ["eval", *(f"eval/{name}" for name in held)] if held else []
    names = [f"{folder}/{name}" for folder in folders for name in evaluated]
    yield from metric_problems(run.checkpoint.named_metric, selections, names, labels)


def _source_problems(run: ExampleOptions, labels: Labels) -> Iterator[ConfigError]:
    if run.data.source is None:
        return
    if run.data.train:
        yield ConfigError(
            f"{labels('data.source')} and {labels('data.train')}: rows come from one of them. Leave one out, or "
            "mix the sets in the source.",
            code="config/source-and-sets",
        )
    if run.train.steps is None and run.data.max_samples is None:
        yield ConfigError(
            f"{labels('data.source')}: a source has no known end, so there are no epochs to count. Set --steps 100, or "
            "--data.max_samples to say how many rows are drawn.",
            code="config/steps-missing",
        )


def _check_images(run: ExampleOptions, selections: Selections, labels: Labels) -> None:
    """Refuse images that nobody reads.

    Raises:
        ConfigError: there is a column of images, and the model reads text alone.
        CapabilityError: the model reads images, and backend or runtime do not.
    """
    if not selections["model.vision"]:
        if run.data.image_key:
            raise no_reader(labels)
        return
    (vision,) = selections["model.vision"]
    for path, word in (("backend.name", BACKEND_SEES), ("runtime.name", RUNTIME_SEES)):
        (chosen,) = selections[path]
        if word not in chosen.registered.component.provides:
            raise CapabilityError(
                f"{labels('model.vision')} {vision.name} needs {word!r}, which {labels(path)} {chosen.name} does not "
                "provide. Choose another one, or leave the images out."
            )


def _without_effect(run: ExampleOptions, selections: Selections) -> Iterator[tuple[str, str]]:
    if not run.log.samples:
        yield "log.samples_every", "no samples are kept. Set --log.samples too."
    yield from held_out_without_effect(run.eval)
    yield from splits_without_effect(run.data.train, run.eval)
    if run.data.source is not None:
        yield "data.split", "rows of --data.source have no splits. Leave it out."
    (runtime,) = selections["runtime.name"]
    if isinstance(runtime.options, PlansPlacement):
        for name in sorted(runtime.options.for_engines):
            yield f"{runtime.section}.{name}", "nothing generates in this run. Leave it out."
    yield from images_without_effect(selections, run.actor)
    yield from shared_without_effect(run, selections)
    yield from length_without_effect(run.train.steps)
    yield from schedule_without_effect("actor", selections, run.actor)


def sets(run: ExampleOptions) -> tuple[str, ...]:
    """Return the sets to train on; the rows of a source are one."""
    return run.data.train if run.data.source is None else (SOURCE_SET,)


def cautions_at(full_rate: float) -> Callable[[Any, Selections, Labels], tuple[str, ...]]:
    """Return the function that warns of options that are allowed and probably not meant.

    Args:
        full_rate: learning rate at which the command trains all weights of a model, by which an adapter's is judged.
    """

    def cautions(run: ExampleOptions, selections: Selections, labels: Labels) -> tuple[str, ...]:
        return tuple(small_adapter_rates(selections, labels, full_rate))

    return cautions


def models(run: ExampleOptions) -> NamedPaths:
    """Yield the model."""
    yield "model.path", run.model.path


def data(run: ExampleOptions) -> NamedPaths:
    """Yield the sets."""
    yield from (("data.train", source) for source in run.data.train)
    yield from held_out_paths(run.eval)
