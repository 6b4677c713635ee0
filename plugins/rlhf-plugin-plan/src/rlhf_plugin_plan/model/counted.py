"""Models and towers that are counted, each once, however many predictions compare choices of a run's options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, TypeVar

from .measured import CountedTower, Measured

CountedT = TypeVar("CountedT", Measured, CountedTower)


def counted(kind: type[CountedT], config: Mapping[str, Any], source: str) -> CountedT:
    """Return what ``kind`` counts in a config.json; the arguments are its own."""
    made: Any = kind  # a class has a hash, which mypy does not see
    found: CountedT = _counted(made, json.dumps(config, sort_keys=True), source)
    return found


@lru_cache(maxsize=16)
def _counted(kind: Any, config: str, source: str) -> Any:
    return kind(json.loads(config), source)
