"""The file with which hydra begins: verl's own, or one of the user's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...table.outcome import Outcome
from ...table.source import SourceOptions
from .hydra import Pair, pairs_of_text

_NAME, _PATH = "config-name", "config-path"
_OF_VERL = (
    "ppo_trainer",
    "sft_trainer",
    "sft_trainer_engine",
    "dapo_trainer",
    "fully_async_ppo_trainer",
)
"""Files that set no more than verl's defaults."""
_ENGINES = ("megatron", "veomni", "torchtitan")
"""Engines, each of which has a file of verl's own, such as ``ppo_megatron_trainer``."""


def as_engine(pair: Pair) -> Pair:
    """Return the key that chooses an engine in place of a file that does; another key as it is."""
    text, name, value = pair
    if name == "actor@actor_rollout_ref.actor":
        return text, "model_engine", str(value).removesuffix("_actor")
    engine = next((one for one in _ENGINES if f"_{one}_" in str(value)), None)
    return (text, "model_engine", engine) if name == _NAME and engine else pair


def pairs_of_config(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the keys of the file that ``--config-path`` and ``--config-name`` name, if it is on this machine."""
    file = _file({name: str(value) for _, name, value in pairs})
    return [] if file is None else pairs_of_text(file.read_text(encoding="utf-8"), str(file))[0]


def set_config(source: SourceOptions, out: Outcome) -> None:
    """Note what becomes of the file."""
    name = source.text(_NAME).removesuffix(".yaml")
    file = _file({_NAME: source.text(_NAME), _PATH: source.text(_PATH)})
    for key in (_NAME, _PATH):
        if file is not None:
            out.nothing(
                key, f"the keys of {file} are read; those of files that it begins with are not"
            )
        elif name in (*_OF_VERL, ""):
            out.nothing(key, "verl's defaults")
        else:
            out.missing(
                key,
                f"{name}.yaml is not on this machine, and its keys are not read: migrate .hydra/config.yaml of a run",
            )


def _file(named: dict[str, str]) -> Path | None:
    if not named.get(_NAME) or not named.get(_PATH):
        return None
    path = Path(named[_PATH], named[_NAME])
    path = path if path.suffix in (".yaml", ".yml") else path.with_name(f"{path.name}.yaml")
    return path if path.is_file() else None
