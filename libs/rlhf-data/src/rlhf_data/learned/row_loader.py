"""The call that reads the rows of one kind: ``load_conversations`` and its siblings, which differ in their form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic

from rlhf_core.media.reader import ImageReader

from ..chat.renderer import TokenizerRenderer
from ..forms.form import RowKind
from ..held_out.sides import ALL, Side
from .options import SequenceOptions
from .reading import ColumnsT, Reading, RowForm, read_rows
from .sets.gathered import LearnedRows
from .tokens import SpanTokenizer


@dataclass(frozen=True, slots=True)
class RowLoader(Generic[ColumnsT]):
    """Reader of data sets as sequences to learn from."""

    form: Callable[[ColumnsT, SequenceOptions, TokenizerRenderer], RowForm]
    """Maker of the way from a row to its sequences, from the columns that the rows of a set have."""
    kinds: tuple[RowKind, ...]

    def __call__(
        self,
        sets: Sequence[str],
        columns: ColumnsT,
        options: SequenceOptions,
        renderer: TokenizerRenderer,
        *,
        eos: int,
        option: str = "data.train",
        images: ImageReader | None = None,
        side: Side = ALL,
    ) -> LearnedRows:
        """Return the rows of some sets as sequences.

        Args:
            sets: files, folders or hub names, each as it is or as ``NAME=PATH``.
            eos: end-of-sequence token, which goes behind texts that no chat template ends.
            option: option that names the sets, for messages.
            images: reader of the rows' images, which stand in prompts, and in the messages of others than the
                assistant; None: the model reads text alone.
            side: rows to read where a share of them is held out.

        Raises:
            DataError: a set cannot be opened, rows are bad (with ``on_bad_row = fail``), no row is left, the tokenizer
                does not tell the characters of its tokens, or chats have no chat template.
        """
        reading = Reading(
            columns=columns,
            kinds=self.kinds,
            form=lambda found: self.form(found, options, renderer),
        )
        tokenizer = SpanTokenizer(renderer, eos)
        return read_rows(sets, reading, tokenizer, options, option, images, side)
