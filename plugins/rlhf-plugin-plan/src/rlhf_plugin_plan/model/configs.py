"""The config.json of each role's model, from a file given on the command line, a model folder or the download cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_cli.runs import PlannedRun
from rlhf_core import ConfigError
from rlhf_core.outside.json_reader import parse_object

from .shapes import ModelShape

Shapes = Mapping[str, ModelShape]
"""Shape of the model of each role, by role."""


def configs_of(planned: PlannedRun, given: Sequence[str]) -> Mapping[str, Path]:
    """Return the config.json, or the folder that has it, of each role's model.

    Args:
        given: values of ``--model-config``: ``FILE``, for the policy and every role with the same model, or
            ``ROLE=FILE``.

    Raises:
        ConfigError: the run lacks a named role, or a role's config.json cannot be found.
    """
    roles = planned.spec.roles
    files = _by_role(given, list(roles))
    policy = roles["policy"].model_path
    found: dict[str, Path] = {}
    for name, spec in roles.items():
        if name in files:
            found[name] = files[name]
        elif "policy" in files and spec.model_path == policy:
            found[name] = files["policy"]
        else:
            found[name] = _find(spec.model_path, name)
    return found


def _by_role(given: Sequence[str], roles: Sequence[str]) -> dict[str, Path]:
    files = {}
    for text in given:
        role, sign, file = text.partition("=")
        if not sign or Path(text).exists():
            role, file = "policy", text
        if role not in roles:
            raise ConfigError(
                f"--model-config {text}: this run has no role {role!r}; expected FILE, or ROLE=FILE with one of "
                f"{', '.join(roles)}",
                code="usage/unknown-role",
            )
        files[role] = Path(file)
    return files


def _find(model: str, role: str) -> Path:
    """Return the model's folder, or its config.json in the download cache. Nothing is downloaded."""
    model = _base_of(model)
    if Path(model).is_dir():
        return Path(model)
    # The import takes long, and a run whose models are folders does not need it.
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    fetch = f"get it with `hf download {model} config.json`, or "
    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        # The hub has no names of this form, so `hf download` could not help either.
        cached, fetch = None, ""
    if isinstance(cached, str):
        return Path(cached)
    which = "" if role == "policy" else f"{role}="
    raise ConfigError(
        f"model {model} of the {role}: no such folder, and its config.json is not among the downloaded files. Nothing "
        f"is downloaded to plan: {fetch}give the file with --model-config {which}FILE",
        code="model/not-found",
    )


def _base_of(model: str) -> str:
    """Return the base that a PEFT folder names, whose shape its model has; of anything else the model itself."""
    try:
        settings = parse_object((Path(model) / "adapter_config.json").read_bytes())
    except (OSError, ValueError):
        return model
    return settings.get("base_model_name_or_path") or model
