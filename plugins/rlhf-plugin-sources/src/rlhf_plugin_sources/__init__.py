"""Data sources: a growing file, a data set that is streamed, and a function. One file each."""

from typing import Any

from rlhf_core import Component, hookimpl

from . import function, hub_stream, jsonl_stream


@hookimpl
def rlhf_data_sources() -> list[Component[Any]]:
    return [jsonl_stream.COMPONENT, hub_stream.COMPONENT, function.COMPONENT]
