"""Prediction of one run: the lengths of its sequences, its models, and what flags beside its own come to."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError
from rlhf_core.contracts import RoleSpec

from .machine.hardware import GpuSpec
from .memory.placement import ClusterSize
from .memory.workload import Workload
from .model.adapters import AdaptedModels, AdapterCounts
from .model.configs import configs_of
from .model.precision import Precision
from .model.shapes import ModelShape, read_shape
from .prediction import Prediction, predict, require_sane

Predicted = Callable[[Sequence[str]], tuple[PlannedRun, Prediction]]
"""Function that predicts a run in whose flags the given ones replace those of the same names."""
_WIDEST = 3.0
"""Largest spread that is planned: the mean is then 90 times the middle length."""


def predicted_run(
    planned: PlannedRun,
    models: AdaptedModels,
    gpu: GpuSpec,
    cluster: ClusterSize | None,
    own: argparse.Namespace,
) -> Prediction:
    """Return the prediction of a run.

    Args:
        own: what ``parser`` reads.

    Raises:
        ConfigError: see ``prediction.predict``.
    """
    workload = _workload(planned, own.prompt_tokens, own.response_tokens)
    if own.response_spread is not None:
        workload = _spread(workload, planned, own)
    configs = configs_of(planned, own.model_config)

    def adapted(spec: RoleSpec, precision: Precision) -> AdapterCounts:
        return models.counts(spec, configs[spec.role], precision)

    shapes = {role: read_shape(path) for role, path in configs.items()}
    workload = replace(
        workload, image_tokens=_image_tokens(planned, shapes["policy"], workload, own.image_tokens)
    )
    return predict(planned, shapes, gpu, cluster, workload, adapted)


def replaced(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """Return the words of a command line in which ``flags`` replace the flags of the same names.

    Args:
        flags: names and values in turn.
    """
    names = set(flags[::2])
    kept: list[str] = []
    dropping = False
    for word in words:
        if word.startswith("-"):
            dropping = word.partition("=")[0] in names
        if not dropping:
            kept.append(word)
    merged = dict(zip(flags[::2], flags[1::2], strict=True))
    return [*kept, *(word for pair in merged.items() for word in pair)]


def require_positive(flags: Mapping[str, int | None]) -> None:
    """Refuse numbers below 1 of flags by name.

    Raises:
        ConfigError: names the first of them.
    """
    for flag, value in flags.items():
        if value is not None and value < 1:
            raise ConfigError(
                f"{flag} {value}: expected a positive number", code="usage/not-positive"
            )


def _workload(planned: PlannedRun, prompt: int | None, response: int | None) -> Workload:
    rollout = planned.run.rollout
    require_positive({"--prompt-tokens": prompt, "--response-tokens": response})
    longest_prompt = min(planned.run.data.max_prompt_tokens, planned.max_length - 1)
    used = prompt or longest_prompt
    workload = Workload(
        prompts=rollout.batch_size,
        samples=rollout.n_samples_per_prompt,
        prompt_tokens=used,
        response_tokens=response or min(rollout.max_new_tokens, planned.max_length - used),
        known_lengths=prompt is not None and response is not None,
    )
    require_sane(workload, planned.max_length)
    return workload


def _spread(workload: Workload, planned: PlannedRun, own: argparse.Namespace) -> Workload:
    """Return the workload with responses of different lengths."""
    spread: float = own.response_spread
    if not 0 < spread <= _WIDEST:
        raise ConfigError(
            f"--response-spread {spread:g}: expected a number above 0 and up to {_WIDEST:g}",
            code="plan/response-spread",
        )
    if own.prompt_tokens is None:
        raise ConfigError(
            f"--response-spread {spread:g}: how long prompts are is not known. Give it with --prompt-tokens 256",
            code="plan/unknown-prompt-length",
        )
    if own.response_tokens is None:
        raise ConfigError(
            f"--response-spread {spread:g}: the mean length of responses is not known. Give it with "
            "--response-tokens 2000",
            code="plan/unknown-response-length",
        )
    longest = min(planned.run.rollout.max_new_tokens, planned.max_length - workload.prompt_tokens)
    return replace(workload, spread=spread, longest_response=longest)


def _image_tokens(
    planned: PlannedRun, policy: ModelShape, workload: Workload, given: int | None
) -> int:
    """Return the number of tokens of each prompt that stand for its image."""
    reader = bool(planned.selections.get("model.vision"))
    sees = reader and (policy.tower_parameters > 0 or policy.missing is not None)
    if given is None and planned.run.data.image_key == "":
        return 0
    if given is None:
        return _largest_image(planned, policy, workload.prompt_tokens) if sees else 0
    if not sees:
        fix = (
            "No tower for images is in its config.json; leave"
            if reader
            else "Set --model.vision, or leave"
        )
        raise ConfigError(
            f"--image-tokens {given}: the run's model reads text alone. {fix} --image-tokens out.",
            code="config/no-reader-of-images",
        )
    if not 0 <= given <= workload.prompt_tokens:
        raise ConfigError(
            f"--image-tokens {given}: expected a number from 0 to the prompt's {workload.prompt_tokens} tokens",
            code="plan/image-tokens-above-prompt",
        )
    return given


def _largest_image(planned: PlannedRun, policy: ModelShape, longest: int) -> int:
    (vision,) = planned.selections["model.vision"]
    pixels = getattr(vision.options, "max_pixels", None)
    largest = None if policy.vision is None else policy.vision.image_tokens(pixels)
    return longest if largest is None else min(longest, largest)
