"""Reading and writing of a tokenizer and its chat template, and the tokens that end a turn: those of its files, and
that of its chat template."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_config.pinned_models import pinned_folder
from rlhf_core.errors import ConfigError, DataError
from rlhf_core.outside.json_reader import read_object

from .chat.renderer import RenderOptions, TokenizerRenderer
from .hub import reach_hub

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlhf_config.common import ModelConfig

_CLASS, _OLDER_CLASS = "TokenizersBackend", "PreTrainedTokenizerFast"
_TOKENS, _OLDER_TOKENS = "extra_special_tokens", "additional_special_tokens"
"""Names in a tokenizer's settings: those of Transformers 5, and of version 4."""
_NAMED = "model_specific_special_tokens"
"""Tokens with names of their own, such as ``image_token``, which version 4 has in an object under ``_TOKENS``."""


def load_tokenizer(
    path: str, *, trust_remote_code: bool = False, has_option: bool = True
) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder or hub name, also ``NAME@REVISION``, which needs no padding token.

    Args:
        has_option: whether ``--model.tokenizer`` can name another folder for it, for messages.

    Raises:
        ConfigError: the tokenizer is missing, cannot be read or downloaded, or needs Python code that came with it.
    """
    from transformers import AutoTokenizer

    path = pinned_folder(path)
    reach_hub(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # Transformers checks little of what the files hold
        raise ConfigError(_reason(path, error), code="tokenizer/unreadable") from error
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        # For a folder with a model only, Transformers returns an empty tokenizer instead of an error.
        raise ConfigError(
            f"model {path}: the tokenizer has no ordinary tokens; is tokenizer.json missing? "
            "Copy the tokenizer's files there"
            + (", or name its folder with --model.tokenizer" if has_option else ""),
            code="tokenizer/no-ordinary-tokens",
        )
    return tokenizer


def read_template(file: str, named_by: str) -> str:
    """Return the chat template that a file holds.

    Args:
        named_by: option or argument that names the file, for the message.

    Raises:
        ConfigError: the file cannot be read, or is not UTF-8.
    """
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{named_by} {file:.200}: expected a file with a Jinja template in UTF-8; reading it failed with "
            f"{type(error).__name__}: {error!s:.200}",
            code="template/unreadable",
        ) from error


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer's files, which give the same tokens when they are read by Transformers 4 or 5.

    Transformers reads the option ``legacy`` of Llama's tokenizers and leaves it out: there would be other tokens behind
    special ones. And version 5 writes a class and a form of special tokens that version 4 refuses, and leaves out
    whether texts get a first and a last token, which version 4 takes from nowhere else for Llama, Gemma and Cohere.
    """
    if (legacy := getattr(tokenizer, "legacy", None)) is not None:
        tokenizer.init_kwargs["legacy"] = legacy
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return
    values = read_object(path, "a tokenizer's settings")
    if values.get("tokenizer_class") == _CLASS:
        values["tokenizer_class"] = _OLDER_CLASS
    if isinstance(values.get(_TOKENS), list) and _OLDER_TOKENS not in values:
        values[_OLDER_TOKENS] = values.pop(_TOKENS)
    values |= _added_to_texts(tokenizer)
    _write(path, values)
    named = None if "auto_map" in values else values.get(_NAMED)  # its own code is not run again
    if isinstance(named, dict) and _TOKENS not in values:
        _write(path, {**values, _TOKENS: named})
        # Transformers 5.17 takes no other token for special then: a file that is read otherwise goes back.
        if set(load_tokenizer(str(folder)).all_special_ids) != set(tokenizer.all_special_ids):
            _write(path, values)


def _added_to_texts(tokenizer: PreTrainedTokenizerBase) -> dict[str, bool]:
    """Return whether a tokenizer puts its tokens of beginning and end around a text, by the names of Transformers 4;
    nothing where it adds others.

    Version 5 takes it from ``tokenizer.json`` alone, whatever a folder's settings say.
    """
    around, bare = (tokenizer("a", add_special_tokens=adds).input_ids for adds in (True, False))
    for begins, ends in product((False, True), repeat=2):
        first = [tokenizer.bos_token_id] if begins else []
        last = [tokenizer.eos_token_id] if ends else []
        if around == [*first, *bare, *last]:
            return {"add_bos_token": begins, "add_eos_token": ends}
    return {}


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def local_tokenizer(model: ModelConfig, data: RenderOptions) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer of a run if its folder is on this machine, and None otherwise.

    Raises:
        ConfigError: it cannot be read.
        DataError: its chat template does not read a variable of the run.
    """
    path, trusted = model.tokenizer or model.path, model.trust_remote_code
    if not (os.path.isdir(path) and os.path.isdir(model.path)):
        return None
    tokenizer = load_tokenizer(path, trust_remote_code=trusted)
    return TokenizerRenderer.by(data, tokenizer).tokenizer


def eos_token_ids(
    tokenizer: PreTrainedTokenizerBase, path: str, *, trust_remote_code: bool = False
) -> tuple[int, ...]:
    """Return the tokens that end a turn, sorted: the tokenizer's token, those by which the chat template ends the
    policy's turns, of answers and of calls, and the tokens of the model's configuration.

    Chat models have several (``<|im_end|>`` and ``<|endoftext|>``), and ``generation_config.json`` lists all. That of a
    base model lists the end of texts alone, also where its chat template, by which it learns to chat, has another.

    Raises:
        ConfigError: there is no such token, so no sequence could end, or an entry is no token id.
    """
    found: set[int] = set()
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    found.update(_ends_of_turns(tokenizer))
    for name, config in _model_configs(path, trust_remote_code):
        found.update(_token_ids(getattr(config, "eos_token_id", None), f"model {path}: {name}"))
    if not found:
        raise ConfigError(
            f"model {path}: neither the tokenizer nor its chat template nor generation_config.json names an "
            "end-of-sequence token; set eos_token in tokenizer_config.json",
            code="tokenizer/no-end-token",
        )
    return tuple(sorted(found))


def end_of_turn(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the token by which the policy's turns end in the chat template: the one behind an answer or, where the
    template writes none there, the one by which the user's next turn begins (GLM-4). None where there is no template,
    or neither is a special token."""
    return next(iter(_ends_of_turns(tokenizer)), None)


def _ends_of_turns(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the tokens by which the policy's turns end in the chat template: that of answers, and behind it that of
    calls where it is another one (``<|observation|>`` of GLM, ``<|call|>`` of gpt-oss)."""
    if tokenizer.chat_template is None:
        return ()
    renderer = TokenizerRenderer(tokenizer)
    try:
        closing = renderer.closing[-1:]
        return (*closing, *(renderer.end_of_calls if closing else ()))
    except DataError:
        return ()


def describe_ends(tokenizer: PreTrainedTokenizerBase, ends: Iterable[int]) -> str:
    """Return one line for a log or a terminal that names the tokens that end a turn, and whose they are.

    Args:
        ends: result of ``eos_token_ids``.
    """
    own = {tokenizer.eos_token_id: "the tokenizer's"}
    for turn in _ends_of_turns(tokenizer):
        own[turn] = f"{own[turn]} and the chat template's" if turn in own else "the chat template's"
    named = [
        f"{tokenizer.convert_ids_to_tokens(token)!r} ({token}, {own.get(token, 'of the model')})"
        for token in ends
    ]
    return f"a turn ends at {' or '.join(named)}"


def _token_ids(listed: Any, where: str) -> list[int]:
    """Return the end-of-sequence tokens that a file lists: none, one id, or several."""
    if listed is None:
        return []
    ids = listed if isinstance(listed, list | tuple) else [listed]
    # type(), not isinstance(): JSON's true is no token.
    if not all(type(token) is int and token >= 0 for token in ids):
        raise ConfigError(
            f"{where} has the eos_token_id {listed!r}; expected a token id, such as 2, or a list of them",
            code="tokenizer/malformed-end-token",
        )
    return list(ids)


def _model_configs(path: str, trust_remote_code: bool) -> list[tuple[str, Any]]:
    """Return the file that lists end-of-sequence tokens: generation_config.json, or config.json where there is none."""
    from transformers import AutoConfig, GenerationConfig

    try:
        return [("generation_config.json", GenerationConfig.from_pretrained(path))]
    except Exception as error:
        is_absent = isinstance(error, OSError) and not os.path.lexists(
            os.path.join(path, "generation_config.json")
        )
        if not is_absent:
            raise ConfigError(
                f"model {path}: generation_config.json cannot be read: {_in_a_line(error)}",
                code="model/unreadable-config",
            ) from error
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ConfigError(_reason(path, error), code="tokenizer/unreadable") from error
    return [("config.json", config.get_text_config())]


def _reason(path: str, error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return (
            f"model {path}: the model comes with Python code, which is not run by default. "
            "Read the code, then add --model.trust_remote_code"
        )
    return (
        f"model {path}: expected a Transformers folder or hub name with a tokenizer; loading it failed with "
        f"{type(error).__name__}: {_in_a_line(error)}"
    )


def _in_a_line(error: Exception) -> str:
    """Return the first two lines of an error in one; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return " ".join(lines[:2]) if lines else type(error).__name__
