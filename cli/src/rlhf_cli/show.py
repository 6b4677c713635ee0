"""The command ``rlhf show``, which prints the samples of a step from the run folder's ``samples.jsonl``, those of an
evaluation from ``eval_samples.jsonl``, or metrics as a table or a chart."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from rlhf_core.errors import ConfigError
from rlhf_core.storage.run_folder import RunFolder, complete

from .records import METRICS, Record, records_of
from .run_end import end_of
from .show_metrics import learned_words, show_metrics
from .tables import HELP, Form

NUMBERS = ("nll", "loss", "margin")

SAMPLES, EVAL_SAMPLES = "samples.jsonl", "eval_samples.jsonl"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

Sample = Record


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="run folder (a run's --output)")],
    step: Annotated[
        int | None, typer.Option("--step", min=0, help="step to show; unset: the latest")
    ] = None,
    evaluation: Annotated[
        bool,
        typer.Option(
            "--eval",
            help="show rollouts of the evaluation at that step, or held-out rows, by data set",
        ),
    ] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="number of samples to show; unset: all")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON object per line, as recorded")
    ] = False,
    images: Annotated[
        Path | None,
        typer.Option("--images", help="folder into which the images of samples are copied"),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="NAMES",
            help="show the first, last, lowest and highest value of metrics instead of samples: names or parts of "
            "names with commas between them, such as reward/mean,kl. Several runs are shown side by side, with the "
            "options that differ",
        ),
    ] = None,
    table: Annotated[
        Form | None, typer.Option("--table", help=f"with --metrics: {HELP} (default text)")
    ] = None,
    plot: Annotated[
        bool,
        typer.Option(
            "--plot",
            help="with --metrics: also draw a chart of each metric; rlhf curve RUN draws learning_curve.png",
        ),
    ] = False,
    others: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="OTHER_RUN", help="further runs that --metrics compares with the first"
        ),
    ] = None,
) -> None:
    """Show what the model of a run wrote at a step, with each reward and where images are. For a run on
    examples, show rows with loss and margin; with --metrics, show metrics of one run or several."""
    if metrics is not None:
        samples_flags = {
            "--step": step is not None,
            "--eval": evaluation,
            "--limit": limit is not None,
            "--images": images is not None,
        }
        if given := [flag for flag, is_given in samples_flags.items() if is_given]:
            raise ConfigError(
                f"--metrics {metrics}: {given[0]} is about samples; leave {given[0]} out",
                code="usage/about-samples",
            )
        show_metrics([run, *(others or ())], metrics, table, as_json=as_json, plot=plot)
        return
    metrics_flags = {"a second run": bool(others), "--table": table is not None, "--plot": plot}
    if given := [flag for flag, is_given in metrics_flags.items() if is_given]:
        raise ConfigError(
            f"{given[0]} is about metrics: expected --metrics NAMES too, such as --metrics reward/mean,kl",
            code="usage/about-metrics",
        )
    chosen, samples = read_samples(run, step, evaluation=evaluation)
    samples = samples[:limit]
    if images is not None:
        copy_images(run, samples, images)
    if as_json:
        for sample in samples:
            print(json.dumps(sample))
        return
    _print_samples(run, chosen, samples, evaluation=evaluation)


def copy_images(run: Path, samples: Sequence[Sample], folder: Path) -> None:
    """Copy the images of samples into a folder, named by the sample and their place in it.

    Raises:
        ConfigError: an image is gone, or the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for sample in samples:
            for number, image in enumerate(sample.get("images", ()), start=1):
                source = run / image["file"]
                shutil.copyfile(source, folder / f"{sample['uid']}-{number}{source.suffix}")
    except OSError as error:
        raise ConfigError(
            f"--images {folder}: the images cannot be copied: {error.strerror} ({error.filename}). Choose "
            "another --images",
            code="output/cannot-copy-images",
        ) from error


def read_samples(
    run: Path, step: int | None, *, evaluation: bool = False
) -> tuple[int, list[Sample]]:
    """Return the number and the samples of a step; None means the latest step.

    Args:
        evaluation: True: samples of the evaluation at that step, not of training.

    The file of a long run is large, so it is read line by line, and only the samples of one step are kept.

    Raises:
        ConfigError: the folder is no run folder, the run keeps no samples, or the step has none; the message then
            lists the steps with samples.
    """
    path = _eval_samples_file(run) if evaluation else _samples_file(run)
    chosen: int | None = None
    kept: list[Sample] = []
    steps: dict[int, None] = {}
    for sample in records_of(path):
        found: int = sample["step"]
        steps[found] = None
        if step is None and found != chosen:
            chosen, kept = found, []
        if found == (chosen if step is None else step):
            kept.append(sample)
    if not steps:
        if not evaluation and (done := _steps_of(run)):
            raise ConfigError(
                f"{run} has no samples to show: a run keeps some of each step with --log.samples 4. "
                f"{done}",
                code="run/no-samples",
            )
        if evaluation:
            raise ConfigError(
                f"{path} is empty: the run has not been evaluated yet, or keeps no samples. Evaluations need "
                "--eval.data FILE or --eval.fraction 0.05, samples --log.samples 4.",
                code="run/not-evaluated",
            )
        why = end_of(run) or f"{RunFolder(run).log} says how far it is"
        raise ConfigError(
            f"{path} is empty: no step of the run has finished yet; {why}",
            code="run/no-step-yet",
        )
    if not kept:
        raise ConfigError(
            f"--step {step}: {run} has samples of {_ranges(list(steps))}. "
            "Choose one of these, or leave --step out for the latest.",
            code="run/no-such-step",
        )
    return (step if step is not None else max(steps)), kept


def _steps_of(run: Path) -> str:
    """Return in sentences how many steps a run has, what it can continue from, and how it learned; empty: no step."""
    path = run / METRICS
    done = max((line["step"] for line in records_of(path)), default=0) if path.is_file() else 0
    if not done:
        return ""
    saved = complete(RunFolder(run).checkpoints)
    newest = f"the newest checkpoint is {saved[-1].name}" if saved else "no checkpoint is there"
    learned = learned_words(records_of(path))
    shown = (
        f" First and last: {learned}; rlhf show {run} --metrics NAMES has more." if learned else ""
    )
    return f"It has finished {done} step{'' if done == 1 else 's'}, with numbers in {path}, and {newest}.{shown}"


def _samples_file(run: Path) -> Path:
    path = run / SAMPLES
    if path.is_file():
        return path
    if (run / METRICS).is_file():
        raise ConfigError(
            f"{run}: the run kept no samples. Train with --log.samples 4 to keep some.",
            code="run/kept-no-samples",
        )
    if not run.is_dir():
        raise ConfigError(
            f"{run}: no such folder; expected a run's --output, such as runs/run",
            code="run/no-folder",
        )
    records = " and ".join(sorted(file.name for file in run.glob("*.jsonl")))
    instead = f". Its own records are in {records}, a JSON object on each line" if records else ""
    raise ConfigError(
        f"{run} is not a run folder: it has no {SAMPLES}. Expected a run's --output, such as runs/run{instead}",
        code="run/not-a-run",
    )


def _eval_samples_file(run: Path) -> Path:
    path = run / EVAL_SAMPLES
    if path.is_file():
        return path
    _samples_file(run)  # says what is wrong with a folder that is no run's
    raise ConfigError(
        f"{run}: it keeps no rollouts of evaluations and no held-out rows; a run does with --eval.data FILE, "
        "--eval.fraction 0.05 or an environment's own tasks.",
        code="run/no-evaluations",
    )


def _ranges(steps: list[int]) -> str:
    """Return steps as text: ``step 3`` or ``steps 1-3, 7, 9-12``; of many ranges only the first and the last."""
    steps = sorted(steps)
    if len(steps) == 1:
        return f"step {steps[0]}"
    parts: list[str] = []
    begin = previous = steps[0]
    for step in [*steps[1:], steps[-1] + 2]:
        if step != previous + 1:
            parts.append(f"{begin}-{previous}" if previous > begin else str(begin))
            begin = step
        previous = step
    shown = parts if len(parts) <= 10 else [*parts[:5], "...", *parts[-3:]]
    return f"steps {', '.join(shown)}"


def _print_samples(run: Path, step: int, samples: Sequence[Sample], *, evaluation: bool) -> None:
    """Print the samples of a step, and behind those of training what is held out in short."""
    console = Console(highlight=False, markup=False, emoji=False)
    count = "1 sample" if len(samples) == 1 else f"{len(samples)} samples"
    console.print(Text(f"{run}, step {step}: {count}", style="bold"), soft_wrap=True)
    if end := end_of(run):
        console.print(Text(_printable(end, console), style="dim"), soft_wrap=True)
    for sample in samples:
        _print_sample(console, sample, run)
    if not evaluation and (held_out := held_out_lines(run / EVAL_SAMPLES, step)):
        lines = [*held_out, f"rlhf show {run} --eval has each of them"]
        console.print(Text("\n" + _printable("\n".join(lines), console)), soft_wrap=True)


def _print_sample(console: Console, sample: Sample, run: Path) -> None:
    title = f"{sample['uid']}  {_scores(sample)}"
    if "eval" in sample:
        title = f"{sample['eval']}  {title}"
    console.print(Text(f"\n{_printable(title, console)}", style="bold"), soft_wrap=True)
    for label, text in _texts(sample):
        console.print(Text(f"{label}:", style="dim"))
        console.print(Text(_printable(text, console)), soft_wrap=True)
    for image in sample.get("images", ()):
        first, end = image["tokens"]
        where = (
            f"{run / image['file']}  {image['width']} x {image['height']}, tokens {first}-{end - 1}"
        )
        where += "" if (run / image["file"]).is_file() else ", which is gone"
        kind = (
            f"frame {image['frame'] + 1} at {image['time_s']:.2f} s"
            if "time_s" in image
            else "image"
        )
        console.print(Text(f"{kind}: {_printable(where, console)}", style="dim"), soft_wrap=True)


def _texts(sample: Sample) -> Iterator[tuple[str, str]]:
    """Yield prompt and response; of a response that an environment wrote too, each part with its speaker; of a solution
    each labeled step with its score."""
    if sample["prompt"] or "example" not in sample:
        yield "prompt", sample["prompt"]
    if steps := sample.get("steps"):
        for number, (text, score, label) in enumerate(steps, start=1):
            yield f"step {number}, score {score:.3g}, label {label:g}", text
        return
    parts = sample.get("parts") or [("response", sample["response"])]
    yield from ((speaker, text) for speaker, text in parts)


def _scores(sample: Sample) -> str:
    """Return the scores as text: ``reward 0.75 (exact 1, length -0.25)  unshaped 0.5  truncated  ended by context``.

    An episode that finished does not say how it ended. The scores of single rewards are left out if there is only one
    and it equals the sum. A row that was trained on has numbers in their place: ``rejected  score -0.31  loss 0.81,
    margin -0.2, wrong``.
    """
    if "example" in sample:
        return _learned(sample)
    named = ", ".join(f"{name} {value:g}" for name, value in sample["rewards"].items())
    is_sum = list(sample["rewards"].values()) == [sample["reward"]]
    text = f"reward {sample['reward']:g}" + (f" ({named})" if named and not is_sum else "")
    text += f"  unshaped {sample['unshaped']:g}" if "unshaped" in sample else ""
    text += "  truncated" if sample["truncated"] else ""
    end = sample.get("end", "finished")
    return text + (f"  ended by {end}" if end != "finished" else "")


def _learned(sample: Sample) -> str:
    """Return the numbers of a row of examples as text; one that ``right`` is 0 or 1 for is told right or wrong."""
    label = "" if "chosen" not in sample else "chosen" if sample["chosen"] else "rejected"
    numbers = dict(sample["rewards"])
    verdict = ""
    if numbers.get("right") in (0.0, 1.0):
        verdict = "right" if numbers.pop("right") else "wrong"
    words = [*(f"{name} {value:.4g}" for name, value in numbers.items()), *filter(None, [verdict])]
    parts = [label, f"score {sample['reward']:.4g}", ", ".join(words)]
    return "  ".join(filter(None, [*parts, "truncated" if sample["truncated"] else ""]))


def _printable(text: str, console: Console) -> str:
    """Return the text with the characters escaped that would change the terminal's state or cannot be encoded."""
    escaped = _CONTROL.sub(lambda match: repr(match[0])[1:-1], text)
    return escaped.encode(console.encoding, "backslashreplace").decode(console.encoding)


def held_out_lines(path: Path, step: int) -> list[str]:
    """Return a line for each held-out set of the last evaluation up to a step: how many of its rows are recorded, and
    means over them; none where nothing is recorded.

    Args:
        path: the file of the evaluations' samples, ``eval_samples.jsonl``.

    Raises:
        ConfigError: a line of the file is no JSON object with a step.
    """
    rows: list[Record] = []
    for row in records_of(path) if path.is_file() else ():
        if row["step"] > step or "example" not in row:
            continue
        if rows and row["step"] != rows[0]["step"]:
            rows = []
        rows.append(row)
    names = dict.fromkeys(row["eval"] for row in rows)
    return [_line(name, [row for row in rows if row["eval"] == name]) for name in names]


def _line(name: str, rows: Sequence[Record]) -> str:
    """Return ``held out at step 10, unseen: 4 pairs, mean loss 0.52, mean margin 0.4, 75 % right``."""
    are_pairs = rows[0]["example"] == "pair"
    # Both rows of a pair have the pair's numbers.
    count = len(rows) // (2 if are_pairs else 1)
    noun = ("pair" if are_pairs else "row") + ("" if count == 1 else "s")
    words = [f"{count} {noun}"]
    for number in NUMBERS:
        if known := [row["rewards"][number] for row in rows if number in row["rewards"]]:
            words.append(f"mean {number} {_mean(known):.4g}")
    if right := [row["rewards"]["right"] for row in rows if "right" in row["rewards"]]:
        words.append(f"{100 * _mean(right):.3g} % right")
    return f"held out at step {rows[0]['step']}, {name}: {', '.join(words)}"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found)
