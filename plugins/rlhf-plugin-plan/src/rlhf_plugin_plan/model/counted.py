"""Models and towers that are counted, each once, however many predictions compare choices of a run's options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from .measured import CountedTower, Measured


def counted_model(config: Mapping[str, Any], source: str) -> Measured:
    """Return the model of a config.json; the arguments are those of ``Measured``."""
    return _model(json.dumps(config, sort_keys=True), source)


def counted_tower(config: Mapping[str, Any], source: str) -> CountedTower:
    """Return the tower of a config.json; the arguments are those of ``CountedTower``."""
    return _tower(json.dumps(config, sort_keys=True), source)


@lru_cache(maxsize=8)
def _model(config: str, source: str) -> Measured:
    return Measured(json.loads(config), source)


@lru_cache(maxsize=8)
def _tower(config: str, source: str) -> CountedTower:
    return CountedTower(json.loads(config), source)
