"""Loading of a reward model: a Transformers sequence classifier with one score, whose head may have any name on disk.

OpenRLHF's reward models have the weights of such a classifier: a decoder under ``model.``, and a linear head without a
bias. ``value_head_prefix`` in ``config.json`` is the name of the head. Only this name differs from Transformers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlhf_core import ConfigError, RLHFError, headline
from rlhf_core.long_work import log_if_long
from rlhf_data import reach_hub
from rlhf_torch.models.loading import reads_images
from rlhf_torch.models.quantized_files import settle_unpacked, stored_quantization, unpacking
from rlhf_torch.models.quiet import errors_only, quiet_loading
from rlhf_torch.models.weight_files import pickled_weights

from .adapted import AdaptedModel, adapted, beside, config_of, merged, quantization_of
from .config import ModelOptions
from .ends import SequenceEnd, sequence_end

HEAD = "score"
"""Transformers' name for the head of a decoder with a classification head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A reward model in evaluation mode, with its tokenizer and the properties that scoring needs."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    vocab_size: int
    """Number of tokens that the model knows; token ids are smaller."""
    max_length: int | None
    """Number of tokens of the longest sequence; None if the model has no limit."""
    skipped_token: int | None
    """Padding token, if the score is taken at the last token that is not padding; None if at the last token."""
    end: SequenceEnd
    """Tokens that end its sequences."""
    mean: float
    """Number that is subtracted from scores."""
    std: float
    """Number that divides scores after the subtraction; above 0."""


def load_model(options: ModelOptions) -> LoadedModel:
    """Load a model onto its device.

    Raises:
        ConfigError: the model cannot be read, does not give exactly one score, or has no head of the given name; or
            scores are to be normalized and config.json has no mean and std; or there is no such device.
    """
    device = device_of(options)
    reach_hub(options.path)
    try:
        adapter = adapted(options, HEAD)
        config = (
            AutoConfig.from_pretrained(options.path, trust_remote_code=options.trust_remote_code)
            if adapter is None
            else config_of(options, adapter)
        )
        tokenizer = load_tokenizer(options)
        model = _load(options, config, adapter)
    except RLHFError:
        raise
    except Exception as error:  # Transformers checks little of what the files hold
        raise _why_not(options, error) from error
    return described(options, model.eval().requires_grad_(False).to(device), tokenizer, config)


def described(
    options: ModelOptions, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, config: Any
) -> LoadedModel:
    """Return a model with the properties that scoring needs.

    Raises:
        ConfigError: scores are to be normalized, and config.json has no mean and std; or it lists no tokens as the
            places of scores.
    """
    text = config.get_text_config()
    mean, std = _normalization(options, config)
    end = sequence_end(options, config, tokenizer)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        vocab_size=int(model.get_input_embeddings().weight.shape[0]),
        max_length=options.max_length or getattr(text, "max_position_embeddings", None),
        skipped_token=_skipped_token(options, config, end),
        end=end,
        mean=mean,
        std=std,
    )


def load_tokenizer(options: ModelOptions) -> PreTrainedTokenizerBase:
    """Return the model's tokenizer."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
        options.tokenizer or options.path, trust_remote_code=options.trust_remote_code
    )
    return tokenizer


def _load(options: ModelOptions, config: Any, adapter: AdaptedModel | None) -> PreTrainedModel:
    dtype = dtype_of(options)
    if adapter is None:
        return _load_weights(options, config, dtype)
    quantization = quantization_of(options, adapter, config)
    load = partial(_load_base, options, config)
    if quantization is None:
        return merged(adapter, load, dtype)
    return beside(adapter, load, dtype, quantization, HEAD)


def _load_weights(options: ModelOptions, config: Any, dtype: torch.dtype) -> PreTrainedModel:
    head = options.head or getattr(config, "value_head_prefix", None) or HEAD
    model, info = _classifier(options, options.path, config, dtype, head)
    _check_loaded(options.path, head, info)
    return model


def _load_base(
    options: ModelOptions, config: Any, path: str, dtype: torch.dtype, **arguments: Any
) -> PreTrainedModel:
    """Return the base of an adapter as a classifier, whose head the adapter brings.

    Args:
        arguments: further ones of ``from_pretrained``.
    """
    model, info = _classifier(options, path, config, dtype, HEAD, **arguments)
    brought = f"{HEAD}.weight"
    info["missing_keys"] = {key for key in info["missing_keys"] if key != brought}
    _check_loaded(path, HEAD, info)
    return model


def _classifier(
    options: ModelOptions,
    path: str,
    config: Any,
    dtype: torch.dtype,
    head: str,
    **arguments: Any,
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Return the classifier of a path, and what Transformers says about its weights."""
    # One label makes one score. A language model's config.json has no labels, for which Transformers would assume two.
    config.id2label, config.label2id = {0: "LABEL_0"}, {"LABEL_0": 0}
    unpacked = unpacking(path, arguments)
    if unpacked:
        # An adapter's own config.json is that of the unpacked base.
        config.quantization_config = dict(stored_quantization(path) or {})
    reading = log_if_long(f"reading the weights of reward model {path}")
    with reading, errors_only(), quiet_loading():  # `_check_loaded` names missing weights.
        model, info = AutoModelForSequenceClassification.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            key_mapping={} if head == HEAD else {rf"^{head}\.": f"{HEAD}."},
            ignore_mismatched_sizes=True,
            trust_remote_code=options.trust_remote_code,
            output_loading_info=True,
            use_safetensors=True,  # the other format is a pickle, which can run code
            **arguments,
            **unpacked,
        )
    if unpacked:
        settle_unpacked(path, model, dtype)
    return model, info


def _check_loaded(path: str, head: str, info: dict[str, Any]) -> None:
    if wrong := sorted(info["mismatched_keys"]):
        name, found, expected = wrong[0]
        raise ConfigError(
            f"reward model {path}: {name} has the shape {tuple(found)}; expected {tuple(expected)}, for one score per "
            "sequence",
            code="reward-model/shape-of-head",
        )
    if missing := sorted(info["missing_keys"]):
        unused = sorted(str(key) for key in info["unexpected_keys"])[:5]
        raise ConfigError(
            f"reward model {path}: its weights have no {missing[0]}, so the score would be random (the head is looked "
            f"for as {head!r}). Not used were: {', '.join(unused) or 'none'}. If one of these is the head, give "
            "its name with the option head; a language model without a trained head is no reward model.",
            code="reward-model/no-head",
        )


def _normalization(options: ModelOptions, config: Any) -> tuple[float, float]:
    if options.normalize == "none":
        return 0.0, 1.0
    if options.normalize == "given":
        assert options.mean is not None
        assert options.std is not None
        return options.mean, options.std
    mean, std = getattr(config, "mean", None), getattr(config, "std", None)
    if not isinstance(mean, int | float) or not isinstance(std, int | float) or not std > 0:
        raise ConfigError(
            f"reward model {options.path}: normalize = model, but its config.json has mean {mean} and std {std}; "
            "expected numbers, std above 0. Use normalize = given with mean and std, or none.",
            code="reward-model/mean-and-std",
        )
    return float(mean), float(std)


def _skipped_token(options: ModelOptions, config: Any, end: SequenceEnd) -> int | None:
    skips = not end.at_end if options.score_at == "auto" else options.score_at == "last_not_pad"
    pad: int | None = config.get_text_config().pad_token_id
    return pad if skips else None


def device_of(options: ModelOptions) -> torch.device:
    """Return the device of the model.

    Raises:
        ConfigError: there is no such device.
    """
    wanted = options.device
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(wanted)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device {wanted}: torch sees {torch.cuda.device_count()} GPUs here. Use cpu, or another index.",
            code="gpu/not-visible",
        )
    return device


def dtype_of(options: ModelOptions) -> torch.dtype:
    """Return the dtype of the weights on the model's device."""
    wanted = options.dtype
    if wanted == "auto":
        return torch.bfloat16 if device_of(options).type == "cuda" else torch.float32
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    return named[wanted]


def _why_not(options: ModelOptions, error: Exception) -> ConfigError:
    if "trust_remote_code" in str(error):
        return ConfigError(
            f"reward model {options.path}: it comes with Python code of its own, which is not run by default. "
            "Read the code, then set trust_remote_code",
            code="reward-model/unusable",
        )
    first = headline(error)
    if first.startswith("Unrecognized configuration class"):
        config = AutoConfig.from_pretrained(
            options.path, trust_remote_code=options.trust_remote_code
        )
        if reads_images(config):
            return ConfigError(
                f"reward model {options.path}: it reads images ({config.model_type}). In a run on images the reward "
                "reward_model reads them with its option vision, such as vlm; rlhf serve-rm serves models that read "
                "text alone",
                code="reward-model/reads-images",
            )
    exported = Path(options.path, "model")
    if not Path(options.path, "config.json").exists() and (exported / "config.json").exists():
        return ConfigError(
            f"reward model {options.path}: it is the folder of a run, whose model is in {exported}; give that",
            code="reward-model/folder-of-a-run",
        )
    if pickled := pickled_weights(options.path):
        first = f"{pickled} is a pickle, which is not read since it can run code; convert it to safetensors"
    return ConfigError(
        f"reward model {options.path}: expected a Transformers folder or hub name with a tokenizer and a model for "
        f"sequence classification; loading it failed with {type(error).__name__}: {first}",
        code="reward-model/not-loadable",
    )
