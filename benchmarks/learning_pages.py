"""What ``learning`` measured, in the documentation: a table, a curve for each component, and a section on its page.

All published results are kept in ``curves/results.jsonl``, one line per component and seed. A new result replaces that
of the same component and seed; the table's rows of components without any are left as they are.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Result = Mapping[str, Any]
Component = tuple[str, str]
"""Kind and name."""

START, END = "<!-- learning table -->", "<!-- end of learning table -->"
CURVE = "## Learning curve"
KEPT = ("kind", "name", "seed", "seconds", "steps", "accuracy", "hardware", "date")
NOTE = (
    "Held-out exact accuracy on `examples/reverse_digits` after 800 steps from random weights, with the options of\n"
    "`benchmarks/learning.py`. Seconds are those of the training steps of one run, on one thread of a machine that is\n"
    "busy with others: they compare roughly. Machines and all points of the curves are in\n"
    "[curves/results.jsonl](curves/results.jsonl)."
)
OLDER = " Components that this file lacks were measured before there was such a file."
HEADER = (
    "| component | seeds | accuracy, by seed | steps to 0.9 | seconds |",
    "| --- | --- | --- | --- | --- |",
)


def publish(documents: Sequence[Path], pages: Path, kinds: Sequence[str]) -> None:
    """Merge the results files into what is published, and write table, curves and pages anew.

    Args:
        documents: ``results.json`` files that ``learning`` wrote.
        pages: the folder ``docs/algorithms``.
        kinds: the order of the table's rows.
    """
    curves = pages / "curves"
    curves.mkdir(exist_ok=True)
    store = curves / "results.jsonl"
    lines = store.read_text(encoding="utf-8").splitlines() if store.exists() else []
    results = merged([*map(json.loads, lines), *_results_of(documents)], kinds)
    store.write_text("".join(json.dumps(one) + "\n" for one in results), encoding="utf-8")
    groups: dict[Component, list[Result]] = {}
    for result in results:
        groups.setdefault((result["kind"], result["name"]), []).append(result)
    for (kind, name), seeds in groups.items():
        picture = f"{kind}_{name}.png"
        draw(seeds, curves / picture, f"{kind} {name}")
        show_on_page(pages / f"{name}.md", kind, picture, seeds)
    write_table(pages / "README.md", groups, kinds)
    print(f"{len(results)} results of {len(groups)} components in {pages}")


def _results_of(documents: Sequence[Path]) -> Iterable[Result]:
    """Every result of the files, with the machine that it was measured on."""
    for path in documents:
        document = json.loads(path.read_text(encoding="utf-8"))
        for result in document["results"]:
            one = {"hardware": document["hardware"], "date": document["date"], **result}
            if one["error"]:
                print(f"left out: {one['kind']}:{one['name']} seed {one['seed']} failed")
            else:
                yield {name: one[name] for name in KEPT} | {"seconds": round(one["seconds"], 1)}


def merged(results: Iterable[Result], kinds: Sequence[str]) -> list[Result]:
    """The last result of each component and seed, in the table's order."""
    last = {(one["kind"], one["name"], one["seed"]): one for one in results}
    return sorted(
        last.values(), key=lambda one: (*_place(one["kind"], one["name"], kinds), one["seed"])
    )


def _place(kind: str, name: str, kinds: Sequence[str]) -> tuple[int, str]:
    return (kinds.index(kind) if kind in kinds else len(kinds), name)


def write_table(
    page: Path, groups: Mapping[Component, Sequence[Result]], kinds: Sequence[str]
) -> None:
    """Replace the table's rows of the components in ``groups``, or add them."""
    before, _, rest = page.read_text(encoding="utf-8").partition(START)
    old, _, after = rest.partition(END)
    rows = {_component_of(line): line for line in old.splitlines() if line.startswith("| [")}
    rows |= {(kind, name): row(kind, name, results) for (kind, name), results in groups.items()}
    ordered = [rows[one] for one in sorted(rows, key=lambda one: _place(*one, kinds))]
    note = NOTE + (OLDER if rows.keys() - groups.keys() else "")
    text = "\n".join([START, note, "", *HEADER, *ordered, END])
    page.write_text(before + text + after, encoding="utf-8")


def _component_of(line: str) -> Component:
    """``| [ppo](ppo.md) (loss) | ...`` -> loss, ppo."""
    cell = line.split("|")[1].strip()
    return cell.rpartition("(")[2].rstrip(")"), cell[1 : cell.index("]")]


def row(kind: str, name: str, results: Sequence[Result]) -> str:
    """A line of the table; the steps are the median over seeds, if all of them got there."""
    reached = [
        next((s for s, a in zip(r["steps"], r["accuracy"], strict=True) if a >= 0.9), None)
        for r in results
    ]
    there = [step for step in reached if step is not None]
    steps = str(int(statistics.median(there))) if len(there) == len(results) else "not reached"
    seeds = ", ".join(str(result["seed"]) for result in results)
    final = ", ".join(f"{result['accuracy'][-1]:.3f}" for result in results)
    seconds = statistics.median(result["seconds"] for result in results)
    return f"| [{name}]({name}.md) ({kind}) | {seeds} | {final} | {steps} | {seconds:.0f} |"


def show_on_page(page: Path, kind: str, picture: str, results: Sequence[Result]) -> None:
    """Put the curve at the end of the component's page, in place of the one before."""
    text = page.read_text(encoding="utf-8").partition(CURVE)[0].rstrip()
    seeds = " ".join(str(result["seed"]) for result in results)
    command = f"python benchmarks/learning.py --only {kind}:{page.stem} --seeds {seeds}"
    page.write_text(
        f"{text}\n\n{CURVE}\n\n![held-out accuracy over steps](curves/{picture})\n\n`{command}`, on "
        "`examples/reverse_digits`; see [the table](README.md#learning-the-quickstart).\n",
        encoding="utf-8",
    )


def draw(results: Sequence[Result], path: Path, title: str) -> None:
    """One small picture: accuracy over steps, a line per seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.8, 2.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for result in results:
        label = f"seed {result['seed']}"
        axes.plot(result["steps"], result["accuracy"], ".-", linewidth=1.2, label=label)
    axes.set(xlabel="step", ylabel="held-out accuracy", ylim=(-0.03, 1.03), title=title)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="lower right")
    # Without the version of matplotlib in it, the same curve gives the same file.
    figure.savefig(path, dpi=90, metadata={"Software": None})
