"""Export of a role as a plain Transformers folder."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoTokenizer, GenerationConfig, PreTrainedModel

from rlhf_core.outside.json_reader import read_object
from rlhf_data import end_of_turn, eos_token_ids, save_tokenizer

from ..adapters.merging import is_quantized
from ..adapters.score_head import add_score_head
from .older_readers import name_rotation
from .quiet import no_progress_bars
from .role_model import VALUE_HEAD_FILE, RoleModel
from .score_head import (
    SCORE_HEAD,
    ScorePlace,
    export_classifier,
    export_config,
    export_with_head,
    has_classifier,
    padding_tokenizer,
)
from .vision_lm import VisionLM

ADAPTER = "adapter"
"""Folder of a reward model's adapter in that of the model."""
GENERATION = "generation_config.json"
"""File that lists the tokens that end a turn."""

log = logging.getLogger(__name__)


def export_model(
    model: RoleModel,
    source: str,
    folder: Path,
    *,
    trust_remote_code: bool,
    weights: Mapping[str, Tensor] | None = None,
) -> None:
    """Write weights, config and the tokenizer of ``source`` into ``folder``, with all tokens that end a turn.

    Under an adapter the folder is the adapter's own (PEFT's), without the base. A value head is a file beside the
    model; a critic that is loaded from the folder starts from it. A model with a score head is written as a sequence
    classifier of one label, with its adapter merged, and the adapter's own files in ``adapter/``, as PEFT has those of
    a sequence classifier: its head, config.json and tokenizer are there too. Beside a quantized base, which takes no
    adapter in, those files are all that is written. An image-text model without a classifier is written as itself, with
    the head as one tensor more.

    Args:
        weights: the weights of a model without an adapter by their Hugging Face names, where its own are not whole;
            None: its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if model.head_name == SCORE_HEAD:
        export_scorer(model, weights, source, folder, trust_remote_code=trust_remote_code)
        return
    save_weights(model, folder, weights)
    if model.value_head is not None:
        # The file is float32 for every role; a backend may hold the head of a bfloat16 role in bfloat16.
        head = {name: t.float().contiguous() for name, t in model.value_head.state_dict().items()}
        save_file(head, folder / VALUE_HEAD_FILE)
    learned = learned_end(model)
    copy_tokenizer(source, folder, trust_remote_code=trust_remote_code, learned=learned)
    if isinstance(model.lm, VisionLM):
        model.lm.reader.family.save(folder)


def save_weights(
    model: RoleModel, folder: Path, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write a model as Transformers does, or its adapter as PEFT does, beside the base's ``generation_config.json``:
    neither of them writes it there, and who generates with the adapter has the ends of turns from it.

    Args:
        weights: those of a model without an adapter; None: its own.
    """
    plain = model.lm.model
    if model.adapter is None:
        save_plain(plain, folder, weights)
        return
    with no_progress_bars():
        model.adapter.save(plain, str(folder))
    _write_generation(plain, folder)


def save_plain(
    model: PreTrainedModel, folder: Path, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write a model as Transformers does, with the ``generation_config.json`` that it was loaded with: of those that
    Transformers reads it refuses to write some, such as one with a temperature and without ``do_sample``."""
    own = getattr(model, "generation_config", None)  # a classifier has none
    model.generation_config = GenerationConfig()
    try:
        with no_progress_bars():
            model.save_pretrained(folder, state_dict=weights)
    finally:
        model.generation_config = own
    name_rotation(folder)
    _write_generation(model, folder)


def _write_generation(model: PreTrainedModel, folder: Path) -> None:
    if (own := getattr(model, "generation_config", None)) is not None:
        own.to_json_file(folder / GENERATION, keys_to_pop=["compile_config"])


def export_scorer(
    model: RoleModel,
    weights: Mapping[str, Tensor] | None,
    source: str,
    folder: Path,
    *,
    trust_remote_code: bool,
) -> None:
    """Write a model with a score head as a sequence classifier of one label, see ``export_model``."""
    plain, head = model.lm.model, model.value_head
    assert head is not None
    own = None
    if model.adapter is not None:
        own = folder if is_quantized(plain.config) else folder / ADAPTER
        model.adapter.save(plain, str(own))
        add_score_head(own, SCORE_HEAD, head.weight)
    places = [folder] if own in (None, folder) else [folder, own]
    pad = _write_tokenizer(plain, source, places, trust_remote_code=trust_remote_code)
    place = ScorePlace(pad, model.row_ends)
    if own == folder:
        export_config(plain, folder, place)
        return
    if model.adapter is not None:
        weights = dict(model.adapter.merged_weights(plain))
    elif weights is None:
        weights = plain.state_dict()
    seeing = model.lm if isinstance(model.lm, VisionLM) else None
    write = export_classifier if seeing is None or has_classifier(plain) else export_with_head
    write(plain, weights, head, folder, place)
    if seeing is not None:
        seeing.reader.family.save(folder)
    if own is not None:
        shutil.copyfile(folder / "config.json", own / "config.json")


def _write_tokenizer(
    model: PreTrainedModel, source: str, folders: Sequence[Path], *, trust_remote_code: bool
) -> int | None:
    """Write the tokenizer of a reward model, and return its padding token; None where there is none to copy."""
    if _lacks_tokenizer(source):
        log.warning("%s has no tokenizer to copy into %s", source, folders[0])
        return None
    tokenizer = padding_tokenizer(
        source, model.config.name_or_path, trust_remote_code=trust_remote_code
    )
    for folder in folders:
        save_tokenizer(tokenizer, folder)
    pad: int = tokenizer.pad_token_id
    return pad


def copy_tokenizer(
    source: str, folder: Path, *, trust_remote_code: bool, learned: int | None = None
) -> None:
    """Write the tokenizer of ``source`` into ``folder``, and all ends of turns into the ``generation_config.json`` of a
    model or adapter there; warn where there is no tokenizer.

    Args:
        learned: result of ``learned_end``. If it is the chat template's end of a turn, the copy calls it the end of
            sequences; a template that writes ``eos_token`` itself would write another text then, and keeps its own.
    """
    if _lacks_tokenizer(source):
        log.warning("%s has no tokenizer to copy into %s", source, folder)
        return
    tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    has_model = any((folder / name).is_file() for name in ("config.json", GENERATION))
    ends = (
        eos_token_ids(tokenizer, str(folder), trust_remote_code=trust_remote_code)
        if has_model
        else ()
    )
    is_free = "eos_token" not in str(tokenizer.chat_template)
    if learned is not None and is_free and learned == end_of_turn(tokenizer):
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(learned)
    save_tokenizer(tokenizer, folder)
    if has_model:
        _write_ends(folder, ends)


def _write_ends(folder: Path, ends: Sequence[int]) -> None:
    """Have the ``generation_config.json`` of a model's folder list the tokens that end a turn, unless it does."""
    path = folder / GENERATION
    values = read_object(path, "a model's generation_config.json") if path.is_file() else {}
    listed = values.get("eos_token_id")
    if set(ends) == set(listed if isinstance(listed, list) else [listed]):
        return
    values["eos_token_id"] = list(ends) if len(ends) > 1 else ends[0]
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _lacks_tokenizer(source: str) -> bool:
    """Return True for a folder without any tokenizer file, where Transformers would make one up from config.json."""
    folder = Path(source)
    return folder.is_dir() and not any(
        path for pattern in ("tokenizer*", "vocab*", "*.model") for path in folder.glob(pattern)
    )


def learned_end(model: RoleModel) -> int | None:
    """Return the token by which a role learned to end its rows, if the model's files named it nowhere; else None."""
    config = getattr(model.lm.model, "generation_config", None)
    named = getattr(config, "eos_token_id", None)
    learned = next(iter(model.row_ends), None)
    return None if learned in (named if isinstance(named, list) else [named]) else learned


@contextmanager
def holding(weights: Mapping[str, nn.Parameter], other: Mapping[str, Tensor]) -> Iterator[None]:
    """Return a context in which parameters hold the values of ``other``; after it they hold their own, to the bit."""
    own = {name: weights[name].detach().clone() for name in other}
    _copy(weights, other)
    try:
        yield
    finally:
        _copy(weights, own)


@torch.no_grad()
def _copy(weights: Mapping[str, nn.Parameter], values: Mapping[str, Tensor]) -> None:
    for name, value in values.items():
        weights[name].copy_(value)
