"""Resuming: the checkpoint that a run continues from, checked against its configuration, its records and its ledger."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from rlhf_config.resolved import ResolvedOptions
from rlhf_core.errors import CheckpointError, ConfigError, ResumeError
from rlhf_core.storage.run_folder import AUTO, RESTART, RunFolder, complete

from ..durable import checkpoint
from ..durable.plugin_record import Record
from ..durable.records import CheckedRecords, Extent, RunningDigest, check_records
from .state import RunState, typed

FREE = ("resume", "output", "observers", "log", "checkpoint", "eval", "data.cache")
"""Options that a resumed run may change without a warning, but for binding ones among them."""

log = logging.getLogger(__name__)

StateT = TypeVar("StateT", bound=RunState)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRules(Generic[StateT]):
    """The ways in which checkpoints of one kind of run differ from others'."""

    state: type[StateT]
    """The state that its checkpoints hold."""
    binding: tuple[str, ...]
    """Options that this state depends on, so that a resumed run may not change them."""
    records: tuple[str, ...]
    """Names of the records that such a run has beside its metrics and samples."""
    check_books: Callable[[RunFolder, StateT, Mapping[str, Extent]], None]
    """Compare the state with the records that go on, by file name. Raises ``CheckpointError``."""
    adopt_options: Callable[[StateT, Any, Collection[str]], None] | None = None
    """Let the state follow the run's options, of which those with these paths have changed; None: it follows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Saved:
    """Contents of a checkpoint's ``state.json`` beside the state."""

    config: dict[str, Any]
    made_with: dict[str, dict[str, str]]
    records: dict[str, Extent]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint(Generic[StateT]):
    """A checkpoint without damage, and the records that belong to it."""

    path: Path
    state: StateT
    made_with: Record
    """Plugins and libraries of the run that saved it."""
    records: Mapping[str, RunningDigest]
    """File name -> digest of the beginning of that record, up to the checkpoint. Records without one start over."""
    damaged: tuple[str, ...] = ()
    """Names of damaged records, which the run sets aside before it goes on."""


def find_resume_point(
    resolved: ResolvedOptions[Any], folder: RunFolder, rules: ResumeRules[StateT]
) -> ResumePoint[StateT] | None:
    """Return the checkpoint to continue from, or None to start at the beginning.

    Raises:
        ResumeError: the named checkpoint, or each one of the folder, is missing or damaged, or the records disagree
            with it.
        ConfigError: an option that binds differs from the checkpoint's.
    """
    wanted = resolved.run.resume.checkpoint
    if wanted in (None, RESTART):
        return None
    try:
        if wanted == AUTO:
            found = _newest(folder)
            if found is None:
                return None
            path, values = found
        else:
            path = Path(str(wanted))
            values = checkpoint.read(path)
        saved, state = _understood(values, path, rules)
        bound = (*rules.binding, *bound_sections(resolved))
        changed = _compare(saved.config, resolved.tree, path, bound, former_names(resolved))
        if rules.adopt_options is not None:
            rules.adopt_options(state, resolved.run, changed)
        return _point(resolved, folder, path, saved, state, rules)
    except ResumeError:
        raise
    except CheckpointError as error:
        raise ResumeError(str(error), code="resume/unusable-checkpoint") from error


def _understood(
    values: Mapping[str, Any], path: Path, rules: ResumeRules[StateT]
) -> tuple[_Saved, StateT]:
    """Return the content of a checkpoint's ``state.json`` by its types.

    Raises:
        CheckpointError: a value is of another type.
    """
    try:
        return typed(_Saved, values), rules.state.from_json(values)
    except CheckpointError as error:
        raise CheckpointError(
            f"{path / 'state.json'}: {error}. Resume from another checkpoint: --resume FOLDER.",
            code="resume/damaged",
        ) from error


def bound_sections(resolved: ResolvedOptions[Any]) -> Iterator[str]:
    """Yield the options of components that bind a resumed run: those of adapters, since with another scaling the same
    tensors are another model, and the shares of environments, since with others the same place is another task."""
    for slot in ("actor.adapter", "critic.adapter"):
        yield from (selection.section for selection in resolved.selections.get(slot, ()))
    for selection in resolved.selections.get("env.use", ()):
        yield f"{selection.section}.share"


def former_names(resolved: ResolvedOptions[Any]) -> dict[str, str]:
    """Return the names that the chosen components had in plugins which are parts of others now, with their names
    today: a checkpoint of that time has the same components."""
    chosen = {one.registered for some in resolved.selections.values() for one in some}
    return {f"{old}:{one.name}": one.qualified for one in chosen for old in one.former}


def _newest(folder: RunFolder) -> tuple[Path, dict[str, Any]] | None:
    found = checkpoint.newest_valid(folder.checkpoints)
    if found is None and complete(folder.checkpoints):
        raise ResumeError(
            f"{folder.checkpoints}: expected a checkpoint without damage; all are damaged, each as reported above. "
            "Start a new run in another --output.",
            code="resume/all-damaged",
        )
    if found is None and (problem := folder.no_checkpoint()):
        raise ResumeError(problem, code="resume/no-checkpoint")
    return found


def _point(
    resolved: ResolvedOptions[Any],
    folder: RunFolder,
    path: Path,
    saved: _Saved,
    state: StateT,
    rules: ResumeRules[StateT],
) -> ResumePoint[StateT]:
    if path.resolve().parent != folder.checkpoints.resolve():
        if folder.is_used():
            raise ResumeError(
                f"--output {folder.root}: a run is there already, and {path} is another run's. Add --resume auto to "
                "continue that run, or choose another folder.",
                code="output/two-runs",
            )
        return ResumePoint(path=path, state=state, made_with=saved.made_with, records={})
    checked = check_records(folder, saved.records, rules.records)
    if checked.damaged and resolved.run.resume.damaged_records == "refuse":
        raise ResumeError(
            _damage_and_choices(folder, path, checked, rules.records), code="resume/records-changed"
        )
    rules.check_books(folder, state, {name: read.extent() for name, read in checked.whole.items()})
    return ResumePoint(
        path=path,
        state=state,
        made_with=saved.made_with,
        records=checked.whole,
        damaged=tuple(checked.damaged),
    )


def _damage_and_choices(
    folder: RunFolder, path: Path, checked: CheckedRecords, records: tuple[str, ...]
) -> str:
    """Return the error text: the damage of each record, and each way to go on."""
    damage = "".join(f"\n  {name} {what}" for name, what in checked.damaged.items())
    older = _older_that_agrees(folder, path, records)
    agrees = f"  --resume {older}   continues from a checkpoint that the records agree with\n"
    return (
        f"{folder.root}: the records are not as the checkpoint {path.name} left them:{damage}\n"
        f"Put back what is lost, or continue with:\n{agrees if older else ''}"
        f"  --resume {path} --resume.damaged_records set-aside   keeps what is damaged as NAME.damaged, "
        "and starts these files over"
    )


def _older_that_agrees(folder: RunFolder, than: Path, records: tuple[str, ...]) -> Path | None:
    for path in reversed(complete(folder.checkpoints)):
        if path.name >= than.name:
            continue
        try:
            saved = typed(_Saved, checkpoint.read(path))
        except CheckpointError:
            continue  # a damaged checkpoint is no way to go on
        if not check_records(folder, saved.records, records).damaged:
            return path
    return None


def _compare(
    saved: Mapping[str, Any],
    now: Mapping[str, Any],
    path: Path,
    binding: tuple[str, ...],
    renamed: Mapping[str, str],
) -> list[str]:
    """Return the options that have changed, and say so.

    Args:
        renamed: the result of ``former_names``, which are no change.
    """
    before = {key: _renamed(value, renamed) for key, value in _leaves(saved)}
    after = dict(_leaves(now))
    changed = sorted(
        key
        for key in {*before, *after}
        if before.get(key) != after.get(key) and not _is_free(key, binding)
    )
    for key in changed:
        if _is_under(key, binding):
            raise ConfigError(
                f"--{key} is {after.get(key)!r}, but the checkpoint {path} was made with {before.get(key)!r}. "
                f"Set it back, or start a new run in another --output.",
                code="resume/option-changed",
            )
    if changed:
        changes = ", ".join(f"{key} {before.get(key)!r} -> {after.get(key)!r}" for key in changed)
        log.warning("resuming with changed options: %s", changes)
    return changed


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, list(value) if isinstance(value, tuple) else value


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Return an option's value with today's names in place of former ones, also behind labels (``LABEL=NAME``)."""
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    if not isinstance(value, str):
        return value
    label, equals, name = value.rpartition("=")
    return f"{label}{equals}{names.get(name, name)}"


def _is_free(key: str, binding: tuple[str, ...]) -> bool:
    """Return whether a longer section of ``FREE`` has the option than of those that are binding."""
    free, bound = (
        max((len(section) for section in sections if _is_under(key, (section,))), default=0)
        for sections in (FREE, binding)
    )
    return free > bound


def _is_under(key: str, sections: tuple[str, ...]) -> bool:
    return any(key == section or key.startswith(section + ".") for section in sections)
