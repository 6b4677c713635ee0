"""The end of a sequence that a reward model scores: the one place that decides it, for every form of input.

``rlhf rm`` trains the score at the token that ends an answer: the chat template's behind chat messages, such as
``<|im_end|>``, whatever the template writes behind it; the end-of-sequence token behind plain text. The model's
``config.json`` says which it was (``score_token_ids``), and every sequence is given to the model with exactly one of
them, as its last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlhf_core import ConfigError
from rlhf_data import end_of_turn
from rlhf_torch.models.score_head import SCORE_TOKENS

from .config import ModelOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceEnd:
    """Tokens and words that end sequences for one reward model."""

    scored: tuple[int, ...]
    """Tokens at which the model learned scores, the one first that is put where none is; empty: the model was trained
    by others, and sequences are scored as they are."""
    at_end: bool
    """Whether what a chat template writes behind the end of the last turn is left out."""
    others: frozenset[int]
    """Further tokens that end or pad sequences, in whose place the first of ``scored`` is put."""
    words: tuple[str, ...]
    """Texts of all these tokens."""
    text_end: int | None
    """Token that is put behind texts; None: none."""

    def ended(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return a sequence with exactly one end behind it, that of the model where its own is another one."""
        if not self.scored:
            return token_ids
        length = len(token_ids)
        while length and token_ids[length - 1] in self.others.union(self.scored):
            length -= 1
        own = next((token for token in token_ids[length:] if token in self.scored), None)
        return [*token_ids[:length], self.scored[0] if own is None else own]

    def without(self, text: str) -> str:
        """Return a text that shows its special tokens without those at its end, and without blanks behind these."""
        while (bare := text.rstrip() if self.at_end else text).endswith(self.words or "\0"):
            text = next(bare.removesuffix(word) for word in self.words if bare.endswith(word))
        return text


def sequence_end(
    options: ModelOptions, config: Any, tokenizer: PreTrainedTokenizerBase
) -> SequenceEnd:
    """Return the ends of sequences by the options, and by what ``config.json`` says of the training.

    Raises:
        ConfigError: ``config.json`` lists something else than tokens.
    """
    listed = getattr(config, SCORE_TOKENS, None) or ()
    if not isinstance(listed, list | tuple) or not all(type(token) is int for token in listed):
        raise ConfigError(
            f"reward model {options.path}: its config.json has the {SCORE_TOKENS} {listed!r:.200}; expected a list of "
            "token ids, such as [2]",
            code="reward-model/end-tokens",
        )
    turn, eos, pad = end_of_turn(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id
    # OpenRLHF, which names its heads, leaves out what a template writes behind its last turn, too.
    at_end = options.score_at == "end" or (
        options.score_at == "auto" and (bool(listed) or hasattr(config, "value_head_prefix"))
    )
    scored = tuple(listed) if at_end else ()
    if options.score_at == "end" and not scored:
        scored = tuple(token for token in (turn, eos) if token is not None)[:1]
    # OpenRLHF's models learned texts with the template's end before the tokenizer's, where these are two.
    known = [pad, eos, *((turn, *scored) if scored else ())]
    ends = dict.fromkeys(token for token in known if token is not None)
    words = [tokenizer.convert_ids_to_tokens(token) for token in ends]
    return SequenceEnd(
        scored=scored,
        at_end=at_end,
        others=frozenset(ends).difference(scored),
        words=tuple(word for word in words if isinstance(word, str) and word),
        text_end=scored[0] if scored else eos,
    )
