"""A run's tokenizer beside the rows and the tokenizers of its models, compared before anything is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlhf_core.batch.vocabulary import Vocabulary
from rlhf_core.errors import ConfigError, DataError

from .chat.probing import AGAIN, ANSWER, USER
from .chat.rendering import ChatTemplate
from .tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from .chat.renderer import TokenizerRenderer


def vocabulary_of(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Return the ids that have a token."""
    ids = set(tokenizer.get_vocab().values())
    size = max(ids) + 1
    return Vocabulary(size=size, holes=tuple(sorted(set(range(size)) - ids)))


def model_rows(path: str, *, trust_remote_code: bool = False) -> int | None:
    """Return the rows of a model's embeddings by its config.json; None where there is none, as beside an adapter."""
    from transformers import AutoConfig

    try:
        config: Any = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    except Exception:  # whoever loads the model says what is wrong with its files
        return None
    rows = getattr(config.get_text_config(), "vocab_size", None)
    return rows if isinstance(rows, int) else None


def check_rows(
    tokenizer: PreTrainedTokenizerBase,
    path: str,
    label: str,
    *,
    resize: bool | None,
    has_adapter: bool = False,
    trust_remote_code: bool = False,
) -> None:
    """Refuse a model with fewer rows than the tokenizer has tokens, whose ids would be outside of it.

    Args:
        path: folder or hub name of the model.
        label: the option that names it, for the message.
        resize: whether the model gets the rows that it lacks; None: nobody could give them.
        has_adapter: whether an adapter is trained beside the model, which then gets no rows.

    Raises:
        ConfigError: the model has fewer rows, and gets no more.
    """
    rows = model_rows(path, trust_remote_code=trust_remote_code)
    size = vocabulary_of(tokenizer).size
    if rows is None or size <= rows or (resize and not has_adapter):
        return
    first = min(token for token in tokenizer.get_vocab().values() if token >= rows)
    if resize:
        fix = (
            "Rows that --model.resize_embeddings adds would be part of the base, which an adapter leaves as it is "
            "and an export leaves out: add them by a run without --actor.adapter first, and give what it exports"
        )
    elif resize is None:
        fix = "Give the model's own tokenizer, or train it with --model.resize_embeddings first"
    else:
        fix = (
            "Set --model.resize_embeddings to add rows, each the mean of the model's own, which learn and are "
            "exported; or give the model's own tokenizer"
        )
    raise ConfigError(
        f"{label} {path}: its embeddings have {rows} rows, and the tokenizer has {size} tokens, the first without a "
        f"row {tokenizer.convert_ids_to_tokens(first)!r} ({first}). {fix}.",
        code="model/embeddings-too-small",
    )


def check_same_tokens(
    tokenizer: PreTrainedTokenizerBase, path: str, label: str, *, trust_remote_code: bool = False
) -> None:
    """Refuse a model whose tokenizer is another one than the run's. What has no tokenizer is not compared.

    Args:
        path: folder or hub name of the model, or of its tokenizer.
        label: what names it, for the message.

    Raises:
        ConfigError: names the first token that differs.
    """
    try:
        other = load_tokenizer(path, trust_remote_code=trust_remote_code)
    except ConfigError:
        # A model needs none to read ids, and whoever loads it says what is wrong with its files.
        return
    if (difference := token_difference(tokenizer, other)) is not None:
        raise ConfigError(
            f"{label} {path}: expected a model with the run's tokenizer, since it reads the run's token ids; "
            f"{difference}. Choose a model of the same family.",
            code="model/other-tokenizer",
        )


def token_difference(own: PreTrainedTokenizerBase, other: PreTrainedTokenizerBase) -> str | None:
    """Return the first token with another id in another tokenizer, or the first id with another token, in words; None
    where there is none.

    Either may have tokens that the other lacks, and an id may have another added token, as a reserved one that got a
    name.
    """
    own_ids, other_ids = own.get_vocab(), other.get_vocab()
    tokens = {number: token for token, number in other_ids.items()}
    added = own.added_tokens_decoder.keys() | other.added_tokens_decoder.keys()
    for token, number in sorted(own_ids.items(), key=lambda pair: pair[1]):
        if (theirs := other_ids.get(token, number)) != number:
            return f"{token!r:.80} is {number} in the run, and {theirs} there"
        if number not in added and (instead := tokens.get(number, token)) != token:
            return f"{number} is {token!r:.80} in the run, and {instead!r:.80} there"
    return None


def note_other_template(
    renderer: TokenizerRenderer, path: str, label: str, fix: str, *, trust_remote_code: bool = False
) -> str | None:
    """Return a line for the log about a model that reads the run's conversations and was trained on another rendering;
    None where its tokenizer renders a conversation as the run does, or either has no chat template.

    Args:
        renderer: the run's.
        path: folder or hub name of the model.
        label: the option that names it.
        fix: what to do, for the end of the line.
    """
    try:
        other = load_tokenizer(path, trust_remote_code=trust_remote_code)
        texts = [
            template.text([USER, ANSWER, AGAIN], reply=True)
            for template in (renderer.template, ChatTemplate(other, renderer.template_kwargs))
        ]
    except (ConfigError, DataError):  # no tokenizer or template; rows that need one are refused
        return None
    if texts[0] == texts[1]:
        return None
    return (
        f"{label} {path}: it reads conversations as the run's chat template renders them, and the template of its own "
        f"tokenizer renders them otherwise, so that it judges text of another form than it was trained on. {fix}"
    )


def common_rows(
    vocabulary: Vocabulary, paths: Sequence[str], *, resize: bool, trust_remote_code: bool = False
) -> Vocabulary:
    """Return the ids that all models have rows for, with a token or without, for a run that samples padding too.

    Args:
        vocabulary: the ids of the run's tokens.
        resize: whether models with fewer rows than these get more.
    """
    found = [model_rows(path, trust_remote_code=trust_remote_code) for path in paths]
    rows = min((one for one in found if one is not None), default=vocabulary.size)
    return Vocabulary(size=max(rows, vocabulary.size) if resize else rows)
