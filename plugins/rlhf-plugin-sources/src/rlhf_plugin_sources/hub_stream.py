"""Data source that streams a data set by the library ``datasets``: one of the hub, or files, without a copy on disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from pydantic import Field

from rlhf_core import Component, Config, DataError


class HubStreamConfig(Config):
    path: str = Field(
        min_length=1, description="name on the Hugging Face hub, or a format: json, csv, parquet"
    )
    config: str | None = Field(
        None, description="configuration to read from a set that has several"
    )
    files: tuple[str, ...] = Field((), description="files or URLs to read, if path is a format")
    split: str = Field("train", description="split of the set to read")
    revision: str | None = Field(
        None,
        description="commit of the set on the hub, so that its rows stay the same; unset: the newest",
    )


class HubStream:
    """Data source of a data set that is read as it is needed."""

    def __init__(self, config: HubStreamConfig) -> None:
        self.config = config

    def rows(self, start: int) -> Iterator[Mapping[str, Any]]:
        """Yield the rows from ``start`` on; those before it are skipped, by files where the format allows it.

        Raises:
            DataError: there is no such set, it cannot be read, or the hub cannot be reached and nothing of that name
                was downloaded earlier.
        """
        try:
            from rlhf_data import WrittenRows

            found = self._opened()
            # Where the types are not known yet, every object may be filled up.
            yield from map(WrittenRows(found.features).row, found.skip(start))
        except DataError:
            raise
        except Exception as error:  # datasets raises whatever its readers and the network raise
            raise self._failure(error) from error

    def _opened(self) -> Any:
        """Return the set; where the hub cannot be reached, one that was downloaded earlier."""
        from datasets import load_dataset

        from rlhf_data import reaching_hub

        config = self.config
        is_here = bool(config.files) or os.path.exists(config.path)
        name = ":".join(filter(None, (config.path, config.config)))
        with nullcontext() if is_here else reaching_hub(name):
            try:
                return load_dataset(
                    config.path,
                    config.config,
                    data_files=list(config.files) or None,
                    split=config.split,
                    revision=config.revision,
                    streaming=True,
                )
            except Exception as error:
                raise self._failure(error) from error

    def _failure(self, error: Exception) -> DataError:
        return DataError(
            f"{self._name}: streaming it failed with {type(error).__name__}: {error}. Check path, config and split "
            "in data.hub_stream; without a network, give files.",
            code="data/stream-failed",
        )

    def where(self, number: int) -> str:
        return f"{self._name}:row {number + 1}"

    @property
    def _name(self) -> str:
        config = self.config
        name = ", ".join(config.files) or ":".join(filter(None, (config.path, config.config)))
        return f"{name}[{config.split}]"


COMPONENT = Component(
    name="hub_stream",
    factory=HubStream,
    config=HubStreamConfig,
    summary="a data set of the hub or files, streamed by datasets",
)
