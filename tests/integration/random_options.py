"""Random options of a training run, of all components of this repository: what each does alone has tests of its own,
and here they meet."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from rlhf_cli.main import main
from rlhf_config.run import RunConfig
from rlhf_config.sections import fields_of
from rlhf_config.selection import Selector
from rlhf_config.train import SLOTS

from .first_party import installed

DRAWN_COMPONENTS = (
    "algo.advantage.estimator",
    "algo.loss.policy",
    "algo.correction.kind",
    "algo.kl.estimator",
    "actor.optim",
    "actor.adapter",
    "actor.lr_schedule",
    "critic.optim",
    "critic.adapter",
    "reward.shapers",
    "rollout.filters",
)
DRAWN_SECTIONS = ("actor.", "algo.", "critic.", "rollout.", "train.")
NOT_DRAWN = (
    *("train.steps", "train.epochs", "algo.teacher.", "critic.path"),
    # Sizes that the tests choose.
    *("rollout.batch_size", "rollout.n_samples_per_prompt", "rollout.max_new_tokens"),
    *("rollout.max_length", "train.max_tokens_per_micro_batch"),
    # Which group is taken first depends on the machine.
    *("rollout.oversampling", "rollout.max_staleness", "rollout.concurrency"),
)
NEUTRAL = {
    "train.max_tokens_per_micro_batch": ("40", "64", "200", "4096"),
    "backend.torch.share_prompts": ("true", "false"),
    "backend.torch.gradient_checkpointing": ("true", "false"),
    "backend.torch.logits_chunk": ("none", "3", "16", "1000"),
    "engine.embedded.decode": ("resident", "stepwise"),
    "engine.embedded.block": ("8", "16", "64"),
    "engine.embedded.slots": ("1", "3", "256"),
    "engine.embedded.prefill_tokens": ("7", "40", "8192"),
    "engine.embedded.share_prefixes": ("true", "false"),
    "rollout.check_weights": ("true", "false"),
}
"""Options that decide how something is computed, and not what."""

Options = dict[str, str]


def drawn(seed: int) -> list[Options]:
    """Return options that a run may get one after the other, each component before its own."""
    draw = random.Random(seed)
    selectors = {slot.path: slot for slot in SLOTS}
    groups = [
        group
        for path in DRAWN_COMPONENTS
        if draw.random() < 0.45
        for group in _component(selectors[path], draw)
    ]
    core = [
        (path, info)
        for path, info in fields_of(RunConfig)
        if path.startswith(DRAWN_SECTIONS) and not path.startswith(NOT_DRAWN)
        if path not in selectors
    ]
    values = ((path, _value(info, draw)) for path, info in draw.sample(core, draw.randint(3, 10)))
    return [*groups, *({path: value} for path, value in values if value is not None)]


def neutral(draw: random.Random) -> Options:
    """Return some options of ``NEUTRAL``."""
    return {name: draw.choice(values) for name, values in NEUTRAL.items() if draw.random() < 0.7}


def accepted(words: Sequence[str], groups: Sequence[Options]) -> list[str]:
    """Return the words of a run with all options that ``--check`` takes beside those before them. They are tried twice:
    an option may need a later one."""
    found = list(words)
    for group in (*groups, *groups):
        if any(f"--{name}" in found for name in group):
            continue
        longer = [*found, *(word for name, value in group.items() for word in (f"--{name}", value))]
        code = main(["train", "--check", *longer])
        assert code in (0, 2), longer
        found = longer if code == 0 else found
    return found


def _component(slot: Selector, draw: random.Random) -> Iterator[Options]:
    """Yield a component, and each option of it that was drawn."""
    entry = draw.choice(installed(slot.hook))
    yield {slot.path: entry.name}
    for name, info in fields_of(entry.component.config):
        if draw.random() < 0.4 and (value := _value(info, draw, name)) is not None:
            yield {f"{slot.section}.{entry.name}.{name}": value}


def _value(info: FieldInfo, draw: random.Random, name: str = "") -> str | None:
    """Return a value of an option, in the words of the command line; None for a kind that is not drawn.

    Seconds are not, for a slow machine must not matter, nor is dropout, whose draws depend on the rows of a
    micro-batch, nor a GPU's paged memory, nor a buffer, whose limit is an option of the run, nor how factors begin,
    since the tiny model has fewer singular values than a rank asks for.
    """
    if name.endswith("_s") or name in ("dropout", "paged", "buffer", "init"):
        return None
    return _of_type(info.annotation, info, draw)


def _of_type(kind: Any, info: FieldInfo, draw: random.Random) -> str | None:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _of_type(draw.choice(get_args(kind)), info, draw)
    if kind is NoneType:
        return "none"
    if origin is Literal:
        return str(draw.choice(get_args(kind)))
    if kind is bool:
        return draw.choice(("true", "false"))
    if kind is int:
        low, high = _bounds(info, 8)
        return str(draw.randint(int(low) + 1, max(int(low) + 1, int(min(high, low + 8)))))
    if kind is float:
        # Not the bounds themselves: there a rounding error may decide what is clipped.
        low, high = _bounds(info, 2)
        return f"{draw.uniform(low + 0.05 * (high - low), high - 0.05 * (high - low)):.4g}"
    return None


def _bounds(info: FieldInfo, width: float) -> tuple[float, float]:
    """Return the least and the largest value, the latter no more than ``width`` higher."""
    low = next((m.ge for m in info.metadata if isinstance(m, annotated_types.Ge)), None)
    low = next((m.gt for m in info.metadata if isinstance(m, annotated_types.Gt)), low)
    high = next((m.le for m in info.metadata if isinstance(m, annotated_types.Le)), None)
    high = next((m.lt for m in info.metadata if isinstance(m, annotated_types.Lt)), high)
    least = 0.0 if low is None else float(low)  # type: ignore[arg-type]
    most = least + width if high is None else float(high)  # type: ignore[arg-type]
    return least, min(most, least + width)
