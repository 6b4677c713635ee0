"""The head of a reward model, and the folder in which Transformers finds it as a sequence classifier of one label."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)

from rlhf_core import PluginError
from rlhf_core.contracts import RoleSpec
from rlhf_data import eos_token_ids

from .older_readers import name_rotation
from .quiet import no_progress_bars
from .weight_files import weight_files

SCORE_HEAD = "score"
"""Transformers' name for the head of a decoder that classifies sequences."""
SCORE_TOKENS = "score_token_ids"
"""Entry of ``config.json`` with the tokens at which a model learned scores, most frequent first."""


class ScorePlace(NamedTuple):
    """Place in a sequence at which a model's score is read."""

    pad: int | None
    """Padding token, behind which no score is read; None: that of the model's configuration."""
    token_ids: tuple[int, ...]
    """Tokens that ended the answers of which the model learned scores, most frequent first; none where it learned
    scores of other places."""


def zero_head(width: int, *, bias: bool = False, **where: Any) -> nn.Linear:
    """Return a linear map D -> 1 of zeros, in float32 unless ``where`` says else.

    torch's own initialization would draw from the global random state, on which a run's seeds would then depend.

    Args:
        where: ``device`` and ``dtype``.
    """
    head = nn.utils.skip_init(nn.Linear, width, 1, bias=bias, **{"dtype": torch.float32, **where})
    assert isinstance(head, nn.Linear)
    for parameter in head.parameters():
        nn.init.zeros_(parameter)
    return head


def score_head(spec: RoleSpec, model: PreTrainedModel) -> nn.Linear:
    """Return a linear map without a bias, D -> 1 in float32: the head saved with the model if there is one, else a
    normal draw from the role's seed, with the standard deviation ``1 / (D + 1)``.

    Source of the draw: OpenRLHF 0.11.2, after Stiennon et al. 2020, arXiv:2009.01325.

    Raises:
        PluginError: the saved head has another shape.
    """
    width = int(model.config.get_text_config().hidden_size)
    head = zero_head(width)
    saved = saved_head(spec.model_path, model.config)
    with torch.no_grad():
        if saved is None:
            generator = torch.Generator().manual_seed(spec.seed)
            head.weight.normal_(std=1.0 / (width + 1), generator=generator)
        elif saved.shape != head.weight.shape:
            raise PluginError(
                f"model {spec.model_path}: its score head has the shape {tuple(saved.shape)}; expected "
                f"{tuple(head.weight.shape)}, for one score per sequence",
                code="model/score-head",
            )
        else:
            head.weight.copy_(saved)
    return head


def saved_head(path: str, config: PretrainedConfig, head: str | None = None) -> Tensor | None:
    """Return the head (1, D) among the weights of a folder or hub name; None where there is none.

    Args:
        head: its name there; None: that of the configuration (``value_head_prefix``), else ``SCORE_HEAD``.
    """
    name = f"{head or getattr(config, 'value_head_prefix', None) or SCORE_HEAD}.weight"
    for file in weight_files(path):
        with safe_open(file, framework="pt") as weights:
            if name in weights.keys():  # noqa: SIM118 (the handle is no mapping)
                tensor: Tensor = weights.get_tensor(name)
                return tensor
    return None


def has_classifier(model: PreTrainedModel) -> bool:
    """Return whether Transformers has a sequence classifier of the model's family."""
    return MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(model.config), None) is not None


def classifier_of(model: PreTrainedModel, names: Collection[str]) -> PreTrainedModel:
    """Return the family's sequence classifier of one label, without weights (on torch's ``meta`` device).

    Args:
        names: names of the plain model's weights, which are others in a model with an adapter in it.

    Raises:
        PluginError: the family has none, or one with other weights.
    """
    family = type(model).__name__
    kind, config = _classifier_of_one_label(model)
    with torch.device("meta"):
        classifier: PreTrainedModel = kind._from_config(config, attn_implementation="eager")
    head = getattr(classifier, SCORE_HEAD, None)
    is_linear = isinstance(head, nn.Linear) and head.bias is None
    lacking = classifier.state_dict().keys() - set(names) - {f"{SCORE_HEAD}.weight"}
    if not is_linear or lacking:
        first = min(lacking) if lacking else SCORE_HEAD
        raise PluginError(
            f"{type(classifier).__name__}: expected the weights of {family} and a linear head {SCORE_HEAD!r} without a "
            f"bias; {first!r} is different. Choose another model.",
            code="model/score-head",
        )
    return classifier


def _classifier_of_one_label(model: PreTrainedModel) -> tuple[Any, PretrainedConfig]:
    """Return the class of the family's sequence classifier, and its configuration."""
    kind = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(model.config), None)
    if kind is None:
        raise PluginError(
            f"{type(model).__name__}: Transformers has no sequence classifier of this family, so its reward model "
            "could not be exported. Choose another model.",
            code="model/no-classifier",
        )
    config = deepcopy(model.config)
    config.num_labels = 1
    return kind, config


def export_config(model: PreTrainedModel, folder: Path, place: ScorePlace) -> None:
    """Write the ``config.json`` of the family's classifier alone, for an adapter's folder; arguments are those of
    ``export_classifier``. Of a quantized base it says how that was quantized."""
    kind, config = _classifier_of_one_label(model)
    config.architectures = [kind.__name__]
    _note_reading(config, place)
    config.save_pretrained(folder)
    name_rotation(folder)


def export_classifier(
    model: PreTrainedModel,
    weights: Mapping[str, Tensor],
    head: nn.Linear,
    folder: Path,
    place: ScorePlace,
) -> None:
    """Write a folder that ``AutoModelForSequenceClassification`` loads as a model of one score.

    Args:
        weights: the model's weights by their Hugging Face names; those that a classifier lacks, such as the output
            head's, are left out.
        place: where the score is read.
    """
    classifier = classifier_of(model, weights.keys())
    names = classifier.state_dict().keys()
    state = {name: weights[name] for name in names if name != f"{SCORE_HEAD}.weight"}
    _save(classifier, state, head, folder, place)


def export_with_head(
    model: PreTrainedModel,
    weights: Mapping[str, Tensor],
    head: nn.Linear,
    folder: Path,
    place: ScorePlace,
) -> None:
    """Write a folder that Transformers loads as the plain model, with the head as one tensor more; arguments are those
    of ``export_classifier``. This is for image-text models, most of which have no sequence classifier."""
    with torch.device("meta"):
        plain: PreTrainedModel = type(model)._from_config(
            deepcopy(model.config), attn_implementation="eager"
        )
    state = {name: weights[name] for name in plain.state_dict()}
    _save(plain, state, head, folder, place)


def _save(
    shell: PreTrainedModel,
    state: dict[str, Tensor],
    head: nn.Linear,
    folder: Path,
    place: ScorePlace,
) -> None:
    """Write a folder of weights and a head, with the configuration of a model without weights."""
    # A backend may keep the head in the dtype of the model, and inside of a larger tensor.
    state[f"{SCORE_HEAD}.weight"] = head.weight.detach().float().clone()
    _note_reading(shell.config, place)
    with no_progress_bars():
        shell.save_pretrained(folder, state_dict=state)
    name_rotation(folder)


def _note_reading(config: PretrainedConfig, place: ScorePlace) -> None:
    """Note in a configuration where the score is read."""
    if place.pad is not None:
        config.get_text_config().pad_token_id = place.pad
    if place.token_ids:
        setattr(config, SCORE_TOKENS, list(place.token_ids))
    # The name by which OpenRLHF, and this project, know that the last token is read, also where it pads.
    config.value_head_prefix = SCORE_HEAD


def padding_tokenizer(source: str, model: str, *, trust_remote_code: bool) -> Any:
    """Return the tokenizer of ``source``, with a padding token that ends no sequence.

    Transformers reads a score at the last token that is not padding. Where sequences end with the padding token, that
    would be the token before the last; such a tokenizer gets another of its special tokens for padding.

    Args:
        model: folder or hub name of the model, whose configuration says which tokens end sequences.
    """
    tokenizer: Any = AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    ends = eos_token_ids(tokenizer, model, trust_remote_code=trust_remote_code)
    special = (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.bos_token_id)
    candidates = chain(special, tokenizer.all_special_ids, range(len(tokenizer)))
    pad = next(token for token in candidates if token is not None and token not in ends)
    if pad != tokenizer.pad_token_id:
        tokenizer.pad_token = tokenizer.convert_ids_to_tokens(pad)
    return tokenizer
