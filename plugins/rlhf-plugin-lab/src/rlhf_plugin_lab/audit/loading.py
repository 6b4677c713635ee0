"""Inputs of an audit beside tokens: a run's sampling, and models with or without an adapter."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_core import ConfigError
from rlhf_core.lazy import torch

from ..paper.contents import CONFIG
from ..recorded.options import Options, read_options
from ..recorded.problems import Problems
from . import lora

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COMMAND = "train"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Parameters by which a run's sampler makes a distribution of logits."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model in float32, and its base where it was made of an adapter."""

    model: PreTrainedModel
    base: PreTrainedModel | None = None


def options_of(run: Path) -> Options:
    """Return a run's options.

    Raises:
        ConfigError: they cannot be read, or are of a command that samples nothing.
    """
    problems = Problems()
    options = read_options(run / CONFIG, problems)
    if not options.values:
        why = "; ".join(problems.lines()) or f"{CONFIG} is empty"
        raise ConfigError(
            f"rlhf audit {run}: expected the run's options, as log-probs are of its temperature; {why}. Restore the "
            "file from a copy, or record the step again"
        )
    if options.command not in ("", COMMAND):
        raise ConfigError(
            f"rlhf audit {run}: expected a run of rlhf {COMMAND}; it is one of rlhf {options.command}, which samples "
            f"nothing. Name one of rlhf {COMMAND}"
        )
    return options


def sampling_of(run: Path, options: Options) -> Sampling:
    """Return how a run samples.

    Raises:
        ConfigError: an option is missing or no number, as in a run of another version.
    """
    found = {}
    for name in ("temperature", "top_k", "top_p", "min_p"):
        text = options.values.get(f"rollout.{name}", "nothing")
        try:
            found[name] = float(text)
        except ValueError as error:
            raise ConfigError(
                f"rlhf audit {run}: expected a number as rollout.{name} in {CONFIG}, got {text}; the run is of "
                f"{options.version or 'an unknown version'}. Record a step with this version"
            ) from error
    return Sampling(
        temperature=found["temperature"],
        top_k=max(0, int(found["top_k"])),
        top_p=found["top_p"],
        min_p=found["min_p"],
    )


def load(folder: Path) -> Loaded:
    """Return a folder's text model in float32; of an adapter of low rank the merged model and its base.

    Raises:
        ConfigError: there is no model, or one of images.
    """
    if (folder / lora.CONFIG).is_file():
        base = load(Path(str(lora.adapter_config(folder).get("base_model_name_or_path")))).model
        return Loaded(model=lora.merged(base, folder), base=base)
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"rlhf audit: no model in {str(folder)!r}; expected a folder with config.json. Name it with --model"
        )
    if getattr(AutoConfig.from_pretrained(folder), "vision_config", None) is not None:
        raise ConfigError(
            f"rlhf audit: {folder} is a model of images; expected one of text, as pixels are not recorded"
        )
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"rlhf audit: the model in {folder} cannot be loaded ({error}). Name another folder with --model"
        ) from error
    return Loaded(model=model.eval())


def special_of(model: PreTrainedModel) -> dict[str, int]:
    """Return the ids of a model's special tokens; of several ends the first."""
    found = {}
    for name in ("pad", "bos", "eos"):
        value = getattr(model.config, f"{name}_token_id", None)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int):
            found[name] = value
    return found
