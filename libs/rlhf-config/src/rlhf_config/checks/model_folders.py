"""Finding of the model that is meant by a folder which has none: of a run or its checkpoints, or of another trainer."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from rlhf_core.outside.json_reader import parse_object
from rlhf_core.plugins import GIVEN
from rlhf_core.storage.run_folder import RunFolder, complete, is_checkpoint

ADAPTER = "adapter_config.json"
_COMMAND = re.compile(r"Repeat it: rlhf ([\w-]+)")


def model_below(folder: Path, needed: str) -> str:
    """Return where a model is: of the run to which the folder belongs, or among the checkpoints of another trainer;
    else what the folder holds. The text continues a message; it is empty for an empty folder.

    Args:
        needed: name of the file that the folder of a model has.
    """
    if of_run := _model_of_run(folder.absolute(), needed):
        return of_run
    found = (folder.glob(f"{depth}/{needed}") for depth in ("*", "*/*"))
    below = [str(one.parent) for paths in found for one in sorted(paths, key=_newest_first)]
    if len(below) == 1:
        return f". There is one in {below[0]}; give that"
    if below:
        more = f" (and {len(below) - 2} more)" if len(below) > 2 else ""
        return f". There are models in {', '.join(below[:2])}{more}; give one of them"
    held = sorted(one.name for one in folder.iterdir())
    return (
        f", but {', '.join(held[:8])}. Give the folder that save_pretrained wrote" if held else ""
    )


def base_of(adapter: Path) -> str:
    """Return the base model that an adapter's folder names, as a word of a command; ``BASE`` if it names none."""
    try:
        name = parse_object((adapter / ADAPTER).read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError):
        return "BASE"
    return shlex.quote(name) if isinstance(name, str) and name else "BASE"


def _newest_first(path: Path) -> tuple[int, str]:
    """Return what sorts the last step of a trainer's checkpoints first."""
    step = re.search(r"(\d+)$", path.parent.name)
    return (-int(step[1]) if step else 0, str(path))


def _model_of_run(folder: Path, needed: str) -> str:
    """Return where the model of a run is, or how it is written, given its folder or one of its checkpoints; an empty
    text for other folders."""
    checkpoint = next((one for one in (folder, folder.parent) if is_checkpoint(one)), None)
    if checkpoint is not None:
        run = RunFolder(checkpoint.parent.parent)
    else:
        run = RunFolder(folder.parent if folder.name == "checkpoints" else folder)
    is_exported = any(os.path.isfile(run.model / name) for name in (needed, ADAPTER))
    model = _shown(run.model)
    if checkpoint is None:
        if is_exported:
            return f". It is the folder of a run, whose model is in {model}; give that"
        checkpoint = next(reversed(complete(run.checkpoints)), None)
    if checkpoint is None:
        return ""
    last = f" The model of the run's last step is in {model}." if is_exported else ""
    return f". A checkpoint holds the state of training.{last} {_export(run, checkpoint)}"


def _export(run: RunFolder, checkpoint: Path) -> str:
    """Return what writes the model of a checkpoint into a folder of its own."""
    step = int(checkpoint.name.rpartition("-")[2])
    output = _shown(run.root.with_name(f"{run.root.name}-step-{step}"))
    what = f"writes the model of step {step} to {output}/model"
    try:
        text = run.config.read_text(encoding="utf-8")
    except (OSError, ValueError):
        text = ""
    command = _COMMAND.search(text)
    if command is None or f'"{GIVEN}:' in text:
        return f"The run's own command with train.steps {step}, resume {_shown(checkpoint)} and output {output} {what}"
    words = ("-c", _shown(run.config), "--resume", _shown(checkpoint), "--train.steps", step)
    line = shlex.join(["rlhf", command[1], *map(str, words), "--output", str(output)])
    return f"This {what}: {line}"


def _shown(path: Path) -> Path:
    """Return a path as you would type it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
