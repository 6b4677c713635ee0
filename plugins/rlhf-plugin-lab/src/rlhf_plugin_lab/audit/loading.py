"""Inputs of an audit beside tokens: a run's sampling, and models with or without an adapter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core import ConfigError
from rlhf_core.lazy import torch

from ..paper.contents import CONFIG
from ..recorded.lines import lines_of
from ..recorded.options import Options, read_options
from ..recorded.problems import Problems
from . import lora
from .pixels import FAMILIES, Pixels

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

COMMAND, LEDGER, IN_FOUR_BITS = "train", "ledger.jsonl", "qlora"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model in float32, and its base where it was made of an adapter."""

    model: PreTrainedModel
    base: PreTrainedModel | None = None
    pixels: Pixels | None = None
    """Pixels by which it sees; None: it is a model of text."""


def trained_version(run: Path, step: int) -> int | None:
    """Return the version of the weights that a step of a run began with; None: the ledger does not say."""
    path = run / LEDGER
    if not path.exists():
        return None
    found = [
        line.value.get("version")
        for line in lines_of(path, Problems())
        if line.value.get("event") == "trained" and line.value.get("step") == step
    ]
    # A step that a resume has done again stands there twice.
    return found[-1] if found and isinstance(found[-1], int) else None


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
            "file from a copy, or record the step again",
            code="lab/options-unreadable",
        )
    if options.command not in ("", COMMAND):
        raise ConfigError(
            f"rlhf audit {run}: expected a run of rlhf {COMMAND}; it is one of rlhf {options.command}, which samples "
            f"nothing. Name one of rlhf {COMMAND}",
            code="lab/other-command",
        )
    return options


def first_weights(options: Options) -> Path:
    """Return the folder of the weights that a run began with: that of its adapter, where it goes on with one, or else
    that of its model."""
    adapter = options.values.get("actor.adapter", "none").rpartition(":")[2]
    begun = options.values.get(f"actor.{adapter}.init_from", "none")
    return Path(options.values.get("model.path", "") if begun == "none" else begun)


def require_plain_base(run: Path, options: Options) -> None:
    """Refuse a run whose base is in 4 bits.

    Raises:
        ConfigError: it is: a plain forward has the numbers that the folder has, not the rounded ones.
    """
    adapter = options.values.get("actor.adapter", "")
    if adapter.rpartition(":")[2] == IN_FOUR_BITS:
        raise ConfigError(
            f"rlhf audit {run}: expected a base in the precision of its folder; actor.adapter is {adapter}, which "
            "rounds it to 4 bits, so that no log-prob is that of a plain forward. Audit a step of the same options "
            "with --actor.adapter lora",
            code="lab/other-precision",
        )


def sampling_of(run: Path, options: Options) -> dict[str, Any]:
    """Return how a run's sampler makes a distribution of logits, by the names that ``Reading`` has for it.

    Raises:
        ConfigError: an option is missing or no number, as in a run of another version.
    """
    found: dict[str, float] = {}
    for name in ("temperature", "top_k", "top_p", "min_p", "min_new_tokens"):
        text = options.values.get(f"rollout.{name}", "nothing")
        try:
            found[name] = float(text)
        except ValueError as error:
            raise ConfigError(
                f"rlhf audit {run}: expected a number as rollout.{name} in {CONFIG}, got {text}; the run is of "
                f"{options.version or 'an unknown version'}. Record a step with this version",
                code="lab/option-no-number",
            ) from error
    top_k, min_new_tokens = max(0, int(found["top_k"])), int(found["min_new_tokens"])
    return {**found, "top_k": top_k, "min_new_tokens": min_new_tokens}


def load(folder: Path) -> Loaded:
    """Return a folder's model in float32; of an adapter of low rank the merged model and its base.

    Raises:
        ConfigError: there is no model, or one of images of another family.
    """
    if (folder / lora.CONFIG).is_file():
        base = load(Path(str(lora.adapter_config(folder).get("base_model_name_or_path"))))
        return Loaded(model=lora.merged(base.model, folder), base=base.model, pixels=base.pixels)
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"rlhf audit: no model in {str(folder)!r}; expected a folder with config.json. Name it with --model",
            code="lab/no-model",
        )
    config = AutoConfig.from_pretrained(folder)
    sees = getattr(config, "vision_config", None) is not None
    if sees and config.model_type not in FAMILIES:
        raise ConfigError(
            f"rlhf audit: {folder} is a model of images of the family {config.model_type}; expected one of "
            f"{', '.join(FAMILIES)}, or a model of text",
            code="lab/model-of-images",
        )
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    try:
        model: PreTrainedModel = kind.from_pretrained(folder, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"rlhf audit: the model in {folder} cannot be loaded ({error}). Name another folder with --model",
            code="lab/model-unreadable",
        ) from error
    return Loaded(model=model.eval(), pixels=_pixels(folder, config) if sees else None)


def _pixels(folder: Path, config: PretrainedConfig) -> Pixels:
    """Return what makes pixels of images for a model in a folder."""
    from transformers import AutoImageProcessor

    try:
        processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"rlhf audit: expected a processor of images in {folder}; it cannot be loaded ({error}). Copy "
            "preprocessor_config.json from the model's own folder",
            code="lab/no-model",
        ) from error
    return Pixels(processor=processor, feature_id=int(config.image_token_id))


def limited(pixels: Pixels, options: Options) -> Pixels:
    """Return pixels within the limits of a run on the area of images."""
    size = dict(pixels.processor.size)
    for option, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        value = options.values.get(f"model.vlm.{option}", "none")
        if value.isdecimal():
            size[edge] = int(value)
    return replace(pixels, processing={**pixels.processing, "size": size})


def never_sampled(loaded: Loaded) -> tuple[int, ...]:
    """Return the tokens that stand for images and videos, which neither side gives a probability."""
    if loaded.pixels is None:
        return ()
    return (loaded.pixels.feature_id, int(loaded.model.config.video_token_id))


def ends_of(folder: Path) -> tuple[int, ...]:
    """Return the tokens that end a turn of a model in a folder.

    Raises:
        ConfigError: there is no tokenizer, or no such token.
    """
    from rlhf_data import eos_token_ids, load_tokenizer

    return eos_token_ids(load_tokenizer(str(folder), has_option=False), str(folder))


def special_of(model: PreTrainedModel) -> dict[str, int]:
    """Return the ids of a model's special tokens; of several ends the first."""
    found = {}
    for name in ("pad", "bos", "eos"):
        value = getattr(model.config.get_text_config(), f"{name}_token_id", None)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, int):
            found[name] = value
    return found
