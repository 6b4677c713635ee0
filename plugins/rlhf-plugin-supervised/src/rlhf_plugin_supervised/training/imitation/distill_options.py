"""The options of ``rlhf distill``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf_core import Config, ConfigError
from rlhf_core.config import Labels, NamedPaths, OptionTree, Selections
from rlhf_core.plugins import Plugins

from ..options import SELECTORS, ExampleOptions, check, data, models
from .sft_options import METRICS as SFT_METRICS
from .sft_options import SftData, SftTraining

METRICS = (*SFT_METRICS, "teacher_nll")


class DistillTeacher(Config):
    path: str | None = Field(
        None,
        min_length=1,
        description="model to learn from: a folder or hub name, or a PEFT folder, which names its base",
    )
    top_k: int = Field(
        64,
        ge=1,
        le=2**20,
        description="the teacher's most probable tokens at each position; all others are one more outcome",
    )
    direction: Literal["forward", "reverse", "jsd"] = Field(
        "forward",
        description="forward: KL(teacher || student), which covers all that the teacher would say; reverse: "
        "KL(student || teacher), which avoids what it would not say; jsd: the mean of the KLs of both to their mixture",
    )
    share: float | None = Field(
        None,
        gt=0.0,
        lt=1.0,
        description="of the teacher in the mixture of jsd, which needs it: 0.5 is the Jensen-Shannon divergence",
    )
    temperature: float = Field(
        1.0,
        gt=0.0,
        le=100.0,
        description="divides the logits of teacher and student before the divergence, whose gradient it makes about "
        "its square times smaller; above 1 unlikely tokens count more",
    )
    nll_coef: float = Field(
        0.0,
        ge=0.0,
        le=100.0,
        description="add this much of the negative log-likelihood of the given tokens",
    )


class DistillOptions(ExampleOptions):
    """All options of ``rlhf distill`` but those of components."""

    output: str = Field("runs/distill", min_length=1, description="run folder")
    data: SftData = SftData()
    train: SftTraining = SftTraining()
    teacher: DistillTeacher = DistillTeacher()


def _check(run: DistillOptions, selections: Selections, labels: Labels, plugins: Plugins) -> None:
    if run.teacher.path is None:
        raise ConfigError("--teacher.path: expected a model to learn from; got none. Add it.")
    if (run.teacher.share is None) == (run.teacher.direction == "jsd"):
        raise ConfigError(
            f"{labels('teacher.share')} {run.teacher.share} with --teacher.direction {run.teacher.direction}: expected "
            "a number with jsd, and none with others. Set --teacher.share 0.5, or another direction."
        )
    check(run, selections, labels, METRICS)


def _models(run: DistillOptions) -> NamedPaths:
    yield from models(run)
    if run.teacher.path is not None:
        yield "teacher.path", run.teacher.path


DISTILL = OptionTree(
    command="distill",
    purpose="Teaches a model the distribution of a teacher on given conversations.",
    example="--optim NAME",
    model=DistillOptions,
    selectors=SELECTORS,
    check=_check,
    cautions=lambda run, selections, labels: (),
    models=_models,
    adapters=frozenset({"teacher.path"}),
    data=data,
)
