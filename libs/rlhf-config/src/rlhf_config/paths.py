"""Checks of the files and folders that a configuration names, before anything is imported or built."""

from __future__ import annotations

# os.path, not Path, asks whether something exists: it answers no, instead of raising, for names that cannot exist.
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.errors import ConfigError
from rlhf_core.storage.run_folder import AUTO, RESTART, RunFolder

from .automatic.choosing import model_config
from .checks.data_files import SUFFIXES, files_of, is_pattern, suffix_of
from .checks.model_folders import ADAPTER, base_of, model_below
from .checks.output_folder import folder_problem
from .common import RunOptions
from .layers import Layer, Words, lookup, merge
from .option_tree import NamedPaths, OptionTree
from .problems import Labels
from .resolved import OptionsT, ResolvedOptions
from .train import TRAIN


def check_paths(
    resolved: ResolvedOptions[Any], layers: Sequence[Layer], options: OptionTree[Any] = TRAIN
) -> None:
    """Refuse files and folders that are not there, or that the run could not write to.

    Args:
        layers: the layers that ``resolved`` was made from; they tell where a path was written.

    Raises:
        ConfigError: the first of ``path_problems``.
    """
    for problem in path_problems(resolved, layers, options):
        raise ConfigError(problem, code="config/unusable-path")


def folder_to_resume(layers: Sequence[Layer], options: OptionTree[Any] = TRAIN) -> RunFolder | None:
    """Return the folder of the run that ``--resume`` goes on with, or None. Reads the options unvalidated."""
    values = merge(layers).values

    def written(path: str, default: str = "") -> str:
        value = lookup(values, path)
        return str(value[0]) if isinstance(value, Words) and value else str(value or default)

    wanted = written("resume.checkpoint")
    if wanted == RESTART:
        return None
    if wanted == AUTO:
        return RunFolder(Path(written("output", options.model.model_fields["output"].default)))
    return RunFolder(Path(wanted).parent.parent) if wanted else None


def path_problems(
    resolved: ResolvedOptions[Any], layers: Sequence[Layer], options: OptionTree[Any] = TRAIN
) -> list[str]:
    """Return a message for each file or folder that a run could not work with."""
    labels = Labels(merge(layers))
    return [
        *_model_problems(_models(resolved.run, options), options.peft, labels),
        *_expert_problems(resolved.run, labels),
        *_data_problems(options.data(resolved.run), labels),
        *(options.outputs or _output_problems)(resolved.run, labels),
    ]


def looks_like_path(name: str) -> bool:
    """True when ``name`` can only be a path: a hub name has at most one slash, and does not start or end with one."""
    return (
        name.startswith(("/", "./", "../", "~"))
        or name in (".", "..")
        or name.endswith("/")
        or name.count("/") > 1
        or os.path.exists(name)
    )


def _models(run: OptionsT, options: OptionTree[OptionsT]) -> Iterator[tuple[str, str, str]]:
    """Yield the option, the value, and the file that such a folder has, of each model and tokenizer."""
    for option, name in options.models(run):
        is_read = option in options.adapters and os.path.isfile(os.path.join(name, ADAPTER))
        is_adapter = is_read or option in options.peft
        yield option, name, ADAPTER if is_adapter else "config.json"
    tokenizer = run.model.tokenizer
    if tokenizer is not None:
        yield "model.tokenizer", tokenizer, "tokenizer_config.json"


def _model_problems(
    models: Iterator[tuple[str, str, str]], peft: frozenset[str], labels: Labels
) -> Iterator[str]:
    for option, name, needed in models:
        form, other = ("PEFT", "") if option in peft else ("Transformers", " or a hub name")
        if other and not looks_like_path(name):
            continue
        folder = Path(name)
        label = f"{labels(option)} {name}"
        if not os.path.exists(name):
            yield f"{label}: expected a {form} folder{other}; there is no such folder{_looked_in(folder)}"
        elif not os.path.isdir(name):
            yield f"{label}: expected a {form} folder; this is a file"
        elif not os.access(folder, os.R_OK | os.X_OK):
            yield f"{label}: the folder cannot be read (permissions)"
        elif needed == "config.json" and os.path.isfile(folder / ADAPTER):
            base = base_of(folder)
            beside = "".join(f"Use both: --model {base} --{one} {name}. Or make" for one in peft)
            yield (
                f"{label}: expected a whole model; it is an adapter (adapter_config.json). {beside or 'Make'} a plain "
                f"model of it and its base: rlhf merge {base} {name} OUT; or train it on: give its base, and {name} as "
                "the option init_from of an adapter"
            )
        elif not os.path.isfile(folder / needed):
            yield f"{label}: expected a {form} folder; it has no {needed}{model_below(folder, needed)}"


def _expert_problems(run: Any, labels: Labels) -> Iterator[str]:
    """Yield a message for each option that is about experts whose model has none, by its config.json."""
    for option, value, path in _about_experts(run):
        try:
            config = model_config(path)
        except ConfigError:
            continue  # whoever loads the model says what is wrong with it
        text = config.get("text_config") or config
        if config and not any("experts" in key and value for key, value in text.items()):
            yield f"{labels(option)} {value}: expected a mixture of experts; {path} has none. Leave it out."


def _about_experts(run: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the option, its value as text, and the model, of what is asked of a model's experts."""
    for role in ("actor", "critic"):
        trained = getattr(run, role, None)
        factor = getattr(trained, "router_aux_loss", None)
        if factor is not None:
            path = getattr(trained, "path", None) or run.model.path
            yield f"{role}.router_aux_loss", f"{factor:g}", path
    correction = getattr(getattr(run, "algo", None), "correction", None)
    if getattr(correction, "replay_routes", False):
        yield "algo.correction.replay_routes", "true", run.model.path


def _data_problems(sources: NamedPaths, labels: Labels) -> Iterator[str]:
    for option, source in sources:
        path = Path(source)
        if is_pattern(source):
            if not files_of(source):
                yield f"{labels(option)} {source}: no file is called so{_looked_in(path)}"
            continue
        if not (looks_like_path(source) or suffix_of(source) in SUFFIXES):
            continue
        if not os.path.exists(source):
            yield f"{labels(option)} {source}: there is no such file{_looked_in(path)}"
        elif not os.access(path, os.R_OK):
            yield f"{labels(option)} {source}: the file cannot be read (permissions)"
        elif os.path.isfile(source) and os.path.getsize(source) == 0:
            yield f"{labels(option)} {source}: the file is empty"
        elif os.path.isfile(source) and suffix_of(source) not in SUFFIXES:
            yield (
                f"{labels(option)} {source}: expected a file that ends with {', '.join(sorted(SUFFIXES))}, or with .gz "
                "behind it, or a folder written by save_to_disk"
            )


def _output_problems(run: RunOptions, labels: Labels) -> Iterator[str]:
    output = Path(run.output)
    label = f"{labels('output')} {run.output}"
    if problem := folder_problem(output, RunFolder(output).problems()):
        yield f"{label}: {problem}"
    if os.path.isfile(output / "config.json"):
        yield f"{label}: there is a model in this folder; choose another one for the run"
    if run.resume.checkpoint is None and os.path.isdir(output) and RunFolder(output).is_used():
        yield (
            f"{label}: a run is there already. Add --resume auto to continue it, or choose another folder."
        )
    wanted = run.resume.checkpoint
    if wanted == AUTO and (reason := RunFolder(output).no_checkpoint()):
        yield f"{labels('resume.checkpoint')} {AUTO}: {reason}"
    if wanted not in (None, AUTO, RESTART) and not os.path.isdir(str(wanted)):
        yield (
            f"{labels('resume.checkpoint')} {wanted}: expected {AUTO}, {RESTART}, or a checkpoint's folder; there is "
            "no such folder"
        )


def _looked_in(path: Path) -> str:
    if path.parts[:1] == ("~",):
        return " (only the shell expands ~; write the whole path)"
    return "" if path.is_absolute() else f" (looked in {Path.cwd()})"
