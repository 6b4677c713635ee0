"""The summary at the end of a run: its status, its rewards and evaluations, its files, and commands to try next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlhf_core.contracts import is_falling
from rlhf_core.outside.json_reader import read_object
from rlhf_core.plugins import GIVEN

from .curve import FILE_NAME as CURVE
from .history import History, Series, read_history
from .wording import duration, eval_label, number

if TYPE_CHECKING:
    from rich.console import Console

    from rlhf_core.contracts import RunResult

Rows = list[tuple[str, str]]
Resuming = Literal["auto", "restart"]

STYLES = {"finished": "green", "interrupted": "yellow", "failed": "red"}
"""Color of each status."""


class Summary:
    """Prints the summary as a panel on a terminal, and as plain lines elsewhere."""

    def __init__(
        self,
        output: Path,
        console: Console,
        total_steps: int,
        command: str,
        config: Mapping[str, Any],
    ) -> None:
        self._output = output
        self._console = console
        self._total = total_steps
        self._command = command
        self._config = config

    def run_end(self, result: RunResult) -> None:
        """Print the summary."""
        history = read_history(self._output / "metrics.jsonl")
        # A run whose steps are in no checkpoint has nothing to continue from.
        how: Resuming = "restart" if result.steps and result.checkpoint is None else "auto"
        resume = resume_line(self._output, self._command, self._config, how)
        vision = self._config.get("model", {}).get("vision")
        best = best_line(self._output, self._command, self._config, result)
        rows = summary_rows(self._output, result, history, self._total, resume, vision, best)
        if self._console.is_terminal:
            _print_panel(self._console, rows, result.status)
        else:
            width = max(len(label) for label, _ in rows) + 2
            print("\n".join(f"{label:{width}}{text}" for label, text in rows))


def summary_rows(
    output: Path,
    result: RunResult,
    history: History,
    total_steps: int,
    resume: str,
    vision: str | None = None,
    best: str | None = None,
) -> Rows:
    """Return pairs of label and text. Of several lines that belong together, only the first has a label.

    Args:
        resume, vision, best: see ``next_commands``. Where the last evaluation is not the best and no checkpoint of the
            best is kept, an option that keeps it is named.
    """
    end = f": {result.message}" if result.message else ""
    rows = [("status", f"{result.status}{end}")]
    rows.append(("steps", f"{result.steps} of {total_steps} in {duration(result.seconds)}"))
    if history.reward.values:
        rows.append(("reward", _first_to_last(history.reward)))
    rows += [(label, _first_to_last(series)) for label, series in history.learned.items()]
    passed = [name for name, series in history.evals.items() if _passed_its_best(name, series)]
    for name, series in history.evals.items():
        rows.append((eval_label(name), _with_best(series, falls=is_falling(name))))
        if name in passed and result.best is None:
            rows.append(
                (
                    "",
                    f"the model is that of the last step; --checkpoint.best_metric {name} keeps the best",
                )
            )
    rows += [(label, str(path)) for label, path in _files(output, result)]
    commands = next_commands(output, result, resume, vision, best if passed else None)
    rows += [("next" if index == 0 else "", text) for index, text in enumerate(commands)]
    return rows


def resume_line(
    output: Path, command: str, config: Mapping[str, Any], how: Resuming = "auto"
) -> str:
    """Return what goes on with a run: its command, or, where a Python program gave objects, the call that has them.

    Args:
        how: ``auto``: from its newest checkpoint; ``restart``: from the beginning.
    """
    if _has_objects(config):
        return f'in Python, with the same objects: rlhf.{command}(..., output={str(output)!r}, resume="{how}")'
    return f"rlhf {command} -c {shlex.quote(str(output / 'config.toml'))} --resume {how}"


def best_line(
    output: Path, command: str, config: Mapping[str, Any], result: RunResult
) -> str | None:
    """Return what writes the model of the best evaluation into a folder beside the run's; None where that is the model
    that the run wrote, where none is kept, and where a Python program gave objects."""
    if result.best in (None, result.checkpoint) or _has_objects(config):
        return None
    step = int(result.best.name.rpartition("-")[2])
    words = ("-c", output / "config.toml", "--resume", result.best, "--train.steps", step)
    line = shlex.join(["rlhf", command, *map(str, words), "--output", f"{output}-best"])
    return f"{line}  # writes the model of the best evaluation to {output}-best/model"


def _has_objects(value: Any) -> bool:
    """Return whether a configuration has the name of an object of a Python program."""
    if isinstance(value, Mapping):
        return any(map(_has_objects, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_objects, value))
    return isinstance(value, str) and value.startswith(f"{GIVEN}:")


def next_commands(
    output: Path,
    result: RunResult,
    resume: str,
    vision: str | None = None,
    best: str | None = None,
) -> list[str]:
    """Return commands to try next, which work as they are in the folder in which the run was started.

    Args:
        resume: what goes on with a run that is not finished.
        vision: the component with which the run's model reads images; None: it reads text alone.
        best: what writes the model of the best evaluation; None: it is that of the last step, or is not kept.
    """
    folder = shlex.quote(str(output))
    commands = []
    if result.status != "finished":
        commands.append(resume)
    if result.model is not None and (use := command_of(result.model)):
        sees = f" --model.vision {shlex.quote(vision)}" if vision else ""
        commands.append(f"{use} {shlex.quote(str(result.model))}{sees}")
    if best is not None:
        commands.append(best)
    samples = output / "samples.jsonl"
    if samples.exists() and samples.stat().st_size:
        commands.append(f"rlhf show {folder}")
    if (output / "tensorboard").exists():
        commands.append(f"tensorboard --logdir {folder}")
    return commands


def command_of(model: Path) -> str | None:
    """Return the command that uses an exported folder; None where there is none, as for reward models that see."""
    config = _json(model / "config.json")
    if not config:
        adapts = str(_json(model / "adapter_config.json").get("task_type"))
        return {"CAUSAL_LM": "rlhf chat", "SEQ_CLS": "rlhf serve-rm"}.get(adapts)
    scores = (config.get("architectures") or [""])[0].endswith("ForSequenceClassification")
    if scores:
        return None if "vision_config" in config else "rlhf serve-rm"
    return "rlhf chat"


def _json(path: Path) -> dict[str, Any]:
    return read_object(path, "what a model's library writes") if path.exists() else {}


def _files(output: Path, result: RunResult) -> Rows:
    files = [("model", result.model)] if result.model else []
    files += [("best", result.best)] if result.best not in (None, result.checkpoint) else []
    files += [("metrics", output / "metrics.jsonl"), ("curve", output / CURVE)]
    return [(label, str(path)) for label, path in files if path.exists()]


def _first_to_last(series: Series) -> str:
    return f"{number(series.values[0])} -> {number(series.values[-1])}"


def _with_best(series: Series, *, falls: bool = False) -> str:
    if len(series.values) == 1:
        return f"{number(series.values[0])} at step {series.steps[0]}"
    best, step = _best(series, falls=falls)
    return f"{_first_to_last(series)}, best {number(best)} at step {step}"


def _passed_its_best(name: str, series: Series) -> bool:
    """Return whether an evaluation after training's first step was better than the last one."""
    best, step = _best(series, falls=is_falling(name))
    return step not in (0, series.steps[-1]) and best != series.values[-1]


def _best(series: Series, *, falls: bool) -> tuple[float, int]:
    """Return the best finite value, and the first step that has it."""
    finite = [pair for pair in zip(series.values, series.steps, strict=True) if isfinite(pair[0])]
    choose = min if falls else max
    return choose(finite, key=lambda pair: pair[0], default=(nan, series.steps[0]))


def _print_panel(console: Console, rows: Rows, status: str) -> None:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    style = STYLES[status]
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, Text(text, style=style if label == "status" else ""))
    console.print(Panel(table, border_style=style, expand=False))
