"""Validation of one section of the tree against one options model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rlhf_core.errors import PluginError

from .annotations import NONE, Mismatch, admits_none, convert, is_table, model_of
from .layers import Words, leaves, lookup
from .problems import Labels, Report, code_of, explain, show, unknown_option

ModelT = TypeVar("ModelT", bound=BaseModel)
_SECTION = "config/option-and-section"


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield the dotted path and the pydantic field of each of a model's options, nested models included."""
    for name, info in model.model_fields.items():
        path = f"{prefix}.{name}" if prefix else name
        nested = model_of(info.annotation)
        if nested is None:
            yield path, info
        else:
            yield from fields_of(nested, path)


def options_of(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted paths of a model's options, nested models included."""
    return (path for path, _ in fields_of(model, prefix))


class Validator:
    """Validates sections one after the other and collects their problems in one report."""

    def __init__(
        self, labels: Labels, known: Iterable[str], report: Report, command: str = "train"
    ) -> None:
        self._labels = labels
        self._known = tuple(known)
        self._report = report
        self._command = command

    def validate(
        self, model: type[ModelT], values: Mapping[str, Any], path: str = "", owner: str = ""
    ) -> ModelT | None:
        """Return the section at ``path`` as its model, or None when the report has gained a problem.

        Args:
            values: the section as merged, words not yet converted.
            owner: the component that the options belong to, for messages; empty for the core's.

        Raises:
            PluginError: a plugin's own validation raised anything but a ValueError.
        """
        shaped = self._shape(model, values, path, owner)
        try:
            validated = model.model_validate(shaped)
        except ValidationError as error:
            self._note(error, model, values, path, owner)
            return None
        except Exception as error:
            raise PluginError(
                f"{self._labels(path)}: the options of {owner or 'the core'} could not be checked: {error!r}",
                code="plugin/check-failed",
            ) from error
        return validated

    def _shape(
        self, model: type[BaseModel], values: Mapping[str, Any], path: str, owner: str
    ) -> dict[str, Any]:
        """Return the values converted to their options' types; a value that cannot be is reported and left out."""
        shaped: dict[str, Any] = {}
        for key, value in values.items():
            here = f"{path}.{key}" if path else key
            info = model.model_fields.get(key)
            if info is None:
                self._note_unknown(here, value)
                continue
            nested = model_of(info.annotation)
            if isinstance(value, Mapping) and nested is not None:
                shaped[key] = self._shape(nested, value, here, owner)
            elif nested is not None and not _unsets(info.annotation, value):
                text = f"{here!r} is a section, not an option; write {here}.OPTION"
                self._report.add(self._labels(here), text, owner, code=_SECTION)
            elif isinstance(value, Mapping) and not is_table(info.annotation):
                for deeper, _ in leaves(value, here):
                    text = f"{here!r} is an option, not a section; --{here} VALUE sets it"
                    self._report.add(self._labels(deeper), text, owner, code=_SECTION)
            else:
                try:
                    shaped[key] = convert(info.annotation, value)
                except Mismatch as mismatch:
                    got = (
                        ""
                        if isinstance(value, Words) and len(value) != 1
                        else f", got {show(value)}"
                    )
                    self._report.add(
                        self._labels(here), f"{mismatch}{got}", owner, code="config/wrong-type"
                    )
        return shaped

    def _note_unknown(self, path: str, value: Any) -> None:
        found = leaves(value, path) if isinstance(value, Mapping) else [(path, value)]
        for leaf, _ in found:
            label = self._labels(leaf)
            text = unknown_option(label, leaf, self._known, self._command)
            self._report.add(label, text, code="config/unknown-option")

    def _note(
        self,
        error: ValidationError,
        model: type[BaseModel],
        values: Mapping[str, Any],
        path: str,
        owner: str,
    ) -> None:
        for item in error.errors():
            below = ".".join(part for part in item["loc"] if isinstance(part, str))
            absent = self._absent(model, below) if item["type"] == "missing" else []
            for name, info in absent:
                text = f"is required but not set; expected: {info.description or 'a value'}"
                self._report.add(
                    self._labels(_join(path, name)), text, owner, code="config/missing-option"
                )
            if not absent:
                written = lookup(values, below) if below else None
                text = explain(item, item["input"] if written is None else written)
                self._report.add(self._labels(_join(path, below)), text, owner, code=code_of(item))

    @staticmethod
    def _absent(model: type[BaseModel], below: str) -> list[tuple[str, FieldInfo]]:
        """Return the required options that are missing: the option ``below``, or all of the section ``below``."""
        return [
            (name, info)
            for name, info in fields_of(model)
            if info.is_required() and (name == below or name.startswith(f"{below}."))
        ]


def _unsets(annotation: Any, value: Any) -> bool:
    """True for ``none`` where a whole section may be unset."""
    return admits_none(annotation) and value in (NONE, Words((NONE,)))


def _join(path: str, below: str) -> str:
    return ".".join(part for part in (path, below) if part)
