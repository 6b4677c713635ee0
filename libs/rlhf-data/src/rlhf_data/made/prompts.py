"""Prompts in rows that environments make, tokenized when a task is made, because there may be no end of rows."""

from __future__ import annotations

import logging
from typing import NamedTuple

from rlhf_config.run import PromptData
from rlhf_core.batch.task import Message
from rlhf_core.media.reader import ImageReader
from rlhf_core.media.reference import MediaRef

from ..chat.renderer import TokenizerRenderer
from ..forms.form import RowKind
from ..forms.formed_source import FormedRows
from ..forms.recognizing import recognized
from ..forms.table import BY_NAME
from ..prompts import length_problem, tokenize_rows
from ..row_images import RowImages, media_of, missing_images
from ..rows import PromptFormat, RowProblem
from ..source import Row, Unreadable, filled_columns, row_error

log = logging.getLogger(__name__)

BLIND_ROWS = 64
"""Rows without an image after which a source is said to have none."""
PROMPT = "prompt"
"""Column of a row with the task's prompt, text or messages; without it the environment writes the first observation."""

_AS_MADE = {"prompt_key": PROMPT, "template": None}
"""Options of ``data`` that hold for rows of sets alone, as rows of environments have them."""
_PROMPTS = BY_NAME["prompt"]


class MadePrompt(NamedTuple):
    """The prompt of a made row."""

    row: Row
    """The row, in which images are references."""
    token_ids: tuple[int, ...] = ()
    messages: tuple[Message, ...] = ()
    """Empty: it is no chat."""
    media: tuple[MediaRef, ...] = ()
    """Images of the messages, in order."""


class PromptReader:
    """Reader of prompts in made rows, by the options of ``data``.

    Args:
        images: reader of images; None: the run's model reads text alone.
        every: every row has a prompt, in the column or by the template of ``data``, as rows of data sets have, and the
            first row tells the form of all; False: in the column ``prompt``, of those rows that have it.
    """

    def __init__(
        self,
        data: PromptData,
        renderer: TokenizerRenderer,
        images: ImageReader | None = None,
        *,
        every: bool = False,
    ) -> None:
        self._every = every
        self._data = data if every else data.model_copy(update=_AS_MADE)
        self._format = PromptFormat.of(self._data)
        self._rows: FormedRows | None = None
        """The way to rows with the columns of ``_format``; None: they have them, or no row came yet."""
        if not every:
            self._rows = FormedRows(_PROMPTS, names={}, is_renamed=False)
        self._is_begun = not every
        self._images = RowImages.of(images)
        self._renderer = renderer
        self._max_tokens = data.max_prompt_tokens
        self._num_blind: int | None = 0
        """Rows so far, while none had an image; None: one had, or there was a warning."""

    def has_prompt(self, row: Row) -> bool:
        return self._every or PROMPT in row

    def read(self, row: Row, where: str) -> MadePrompt:
        """Return a row's prompt.

        Raises:
            DataError: the prompt cannot be used.
        """
        row = self._formed(row, where)
        (found,) = tokenize_rows(
            [(0, row)], self._format, self._renderer, self._max_tokens, self._images
        )
        if isinstance(found, RowProblem):
            raise row_error(where, found) from found
        if problem := length_problem(found.length, self._max_tokens):
            raise row_error(where, problem)
        prompt = self._images.prompt(row, self._format.prompt(row))
        self._note(row, found.num_images)
        return MadePrompt(
            token_ids=tuple(found.token_ids),
            messages=prompt if isinstance(prompt, tuple) else (),
            media=media_of(prompt),
            row=self._images.plain_row(row, prompt, self._format.prompt_key),
        )

    def _formed(self, row: Row, where: str) -> Row:
        """Return a row in our own columns.

        Raises:
            DataError: it is of another form than the first one, or that is of a form that something else learns from.
        """
        if not self._is_begun:
            found = recognized([row], self._data, (RowKind.PROMPTS,), where)
            found.say("data.source", where)
            self._format, self._rows = PromptFormat.of(found.columns), found.rows
            self._is_begun = True
        made = row if self._rows is None else self._rows.made(row)
        if isinstance(made, Unreadable):
            raise row_error(where, made)
        return made

    def _note(self, row: Row, num_images: int) -> None:
        """Warn once if the first rows of a source have no image, and the model reads images."""
        reader = self._images.reader
        if reader is None or reader.key == "" or not self._every or self._num_blind is None:
            return
        self._num_blind = None if num_images else self._num_blind + 1
        if self._num_blind == BLIND_ROWS:
            self._num_blind = None
            missing = missing_images(reader, filled_columns(row))
            log.warning("data.source: none of the first %d rows has %s", BLIND_ROWS, missing)
