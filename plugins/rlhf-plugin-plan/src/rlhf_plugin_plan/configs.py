"""Where the config.json of each role's model comes from: a file that was given, a folder, or the cache of downloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError

from .shapes import ModelShape, read_shape

Shapes = Mapping[str, ModelShape]
"""By role."""


def shapes_of(planned: PlannedRun, given: Sequence[str]) -> Shapes:
    """Return the shape of each role's model.

    Args:
        given: ``FILE``, for the policy and every role with the same model; or ``ROLE=FILE``.

    Raises:
        ConfigError: a role that the run does not have, or a config.json that is nowhere.
    """
    roles = planned.spec.roles
    files = _by_role(given, list(roles))
    policy = roles["policy"].model_path
    shapes: dict[str, ModelShape] = {}
    for name, spec in roles.items():
        if name in files:
            shapes[name] = read_shape(files[name])
        elif "policy" in files and spec.model_path == policy:
            shapes[name] = read_shape(files["policy"])
        else:
            shapes[name] = read_shape(_find(spec.model_path, name))
    return shapes


def _by_role(given: Sequence[str], roles: Sequence[str]) -> dict[str, Path]:
    files = {}
    for text in given:
        role, sign, file = text.partition("=")
        if not sign or Path(text).exists():
            role, file = "policy", text
        if role not in roles:
            raise ConfigError(
                f"--model-config {text}: this run has no {role!r}; expected FILE, or ROLE=FILE with one of "
                f"{', '.join(roles)}"
            )
        files[role] = Path(file)
    return files


def _find(model: str, role: str) -> Path:
    """A folder, or what an earlier download has left. Nothing is downloaded."""
    if Path(model).is_dir():
        return Path(model)
    # Imported here: a folder or a given file needs none of it.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    fetch = f"get it with `hf download {model} config.json`, or "
    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError:  # not a name that the hub could have
        cached, fetch = None, ""
    if isinstance(cached, str):
        return Path(cached)
    which = "" if role == "policy" else f"{role}="
    raise ConfigError(
        f"model {model} of the {role}: no such folder, and its config.json is not among the downloaded files. Nothing "
        f"is downloaded to plan: {fetch}give the file with --model-config {which}FILE."
    )
