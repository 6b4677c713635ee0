"""Loading a tokenizer, and all tokens that end a turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(path: str, *, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder or hub name.

    A padding token is not needed: nothing here pads tokens.

    Raises:
        ConfigError: there is none, it cannot be read, or it needs Python code that came with it.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ConfigError(_reason(path, error)) from error
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        # Transformers makes up an empty tokenizer for a folder that has only a model
        raise ConfigError(
            f"model {path}: its tokenizer has no ordinary tokens; is tokenizer.json missing? "
            "Copy the tokenizer's files there, or name its folder with --model.tokenizer"
        )
    return tokenizer


def eos_token_ids(
    tokenizer: PreTrainedTokenizerBase, path: str, *, trust_remote_code: bool = False
) -> tuple[int, ...]:
    """Return every token that ends a turn, sorted: the tokenizer's, and those of the model's configuration.

    Chat models have several (``<|im_end|>`` and ``<|endoftext|>``), and only ``generation_config.json`` lists them all.

    Raises:
        ConfigError: there is none, so no sequence could end.
    """
    found: set[int] = set()
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    for config in _model_configs(path, trust_remote_code):
        eos = getattr(config, "eos_token_id", None)
        found.update([eos] if isinstance(eos, int) else eos or ())
    if not found:
        raise ConfigError(
            f"model {path}: neither the tokenizer nor generation_config.json names an end-of-sequence token; "
            "set eos_token in tokenizer_config.json"
        )
    return tuple(sorted(found))


def _model_configs(path: str, trust_remote_code: bool) -> list[Any]:
    from transformers import AutoConfig, GenerationConfig

    configs: list[Any] = []
    try:
        configs.append(GenerationConfig.from_pretrained(path))
    except OSError:  # it has no generation_config.json, which is optional
        try:
            config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(_reason(path, error)) from error
        configs.append(config.get_text_config())
    return configs


def _reason(path: str, error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return (
            f"model {path}: it comes with Python code of its own, which is not run by default. "
            "Read the code, then add --model.trust_remote_code"
        )
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return (
        f"model {path}: expected a Transformers folder or hub name with a tokenizer; loading it failed with "
        f"{type(error).__name__}: {first}"
    )
