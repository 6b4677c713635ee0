"""Tasks into which ``diagnoses.py`` puts faults: digits to reverse, digits to sort in turns, colors of shapes to see.

A task is a folder with a model of random weights, ``train.toml`` and, for runs on examples, rows: ``train.jsonl``,
``few.jsonl``, ``noisy.jsonl``, in which three of ten answers are wrong, and ``test.jsonl``; and pairs whose better
answer is right (``pairs.jsonl``, ``test_pairs.jsonl``), wrong in three of ten (``noisy_pairs.jsonl``) or random
(``random_pairs.jsonl``).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from diagnoses_rewards import REWARDS

from rlhf_cli.quickstart.files import write_task
from rlhf_env_shapes.config import ShapesConfig
from rlhf_env_shapes.environment import Shapes
from rlhf_env_shapes.scenes import Scene
from rlhf_env_sorting.environment import Sorting, SortingConfig
from rlhf_testing.tiny import write_tiny_model
from rlhf_testing.tiny_vision import write_tiny_vision_model

Row = dict[str, Any]
ROWS, HELD_OUT, FEW = 768, 96, 32
"""Rows of the tasks with an environment, and held-out and few ones of all."""
NOISE = 0.3
"""Share of the answers, or of the pairs, that are wrong where there is noise."""
SIDE = 16
"""Pixels of the side of an image."""
_COMMON = """\
[algo.advantage]
estimator = "reinforce_baseline"
[train]
steps = 60
[checkpoint]
at_end = false
export = false
[log]
progress = "off"
summary = false
tensorboard = false
curve = false
[engine.embedded]
compile = false
[runtime.local]
threads = 1
"""
REVERSE = """\
[model]
path = "{task}/model"
[data]
train = ["{task}/train.jsonl"]
max_prompt_tokens = 8
[reward]
use = ["{task}/rewards.py:score"]
[rollout]
batch_size = 8
n_samples_per_prompt = 8
max_new_tokens = 4
[algo.loss]
entropy_coef = 0.1
[actor.adam]
lr = 5e-3
[eval]
data = ["held_out={task}/test.jsonl"]
every = 10
max_samples = 16
"""
SORTING = """\
[model]
path = "{task}/model"
[env]
use = ["sorting"]
[env.sorting]
length = 3
style = "text"
[rollout]
executor = "multi_turn"
batch_size = 16
n_samples_per_prompt = 8
max_new_tokens = 1
max_length = 32
[rollout.multi_turn]
max_turns = 3
[algo.loss]
entropy_coef = 0.1
[actor.adam]
lr = 2e-3
[eval]
every = 10
max_samples = 32
"""
SHAPES = """\
[model]
path = "{task}/model"
vision = "vlm"
[env]
use = ["shapes"]
[env.shapes]
questions = ["color"]
size = 16
most = 4
style = "letters"
[rollout]
executor = "multi_turn"
batch_size = 16
n_samples_per_prompt = 8
max_new_tokens = 1
max_length = 64
[rollout.multi_turn]
max_turns = 1
[algo.loss]
entropy_coef = 0.02
[actor.adam]
lr = 2e-3
[eval]
every = 10
max_samples = 32
"""


@dataclass(frozen=True, slots=True)
class Split:
    """Rows with ``prompt``, ``answer`` and ``wrong``, answers that are not right."""

    train: Sequence[Row]
    held_out: Sequence[Row]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTask:
    """A task and how it is learned."""

    config: str
    """Of ``rlhf train``; ``{task}`` is the folder."""
    rate: float
    """Learning rate at which it is learned within 60 steps."""
    write: Callable[[Path], Split]
    """Writes the model and what else a run needs, and returns rows."""
    is_played: bool = True
    """Whether an environment gives the reward; else a file ``rewards.py`` does."""
    flags: str = ""
    """Further flags of runs on examples."""

    def rates(self) -> Mapping[str, str]:
        """Return learning rates for flags, by name: ``lr_x1``, ``lr_by_50`` and so on."""
        faster = {f"lr_x{times}": f"{self.rate * times:.3g}" for times in (1, 2, 6, 20, 100)}
        return faster | {f"lr_by_{times}": f"{self.rate / times:.3g}" for times in (50, 1000)}


def write_bench_task(name: str, folder: Path) -> None:
    """Write everything of a task into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    task = TASKS[name]
    rows = task.write(folder)
    (folder / "train.toml").write_text(task.config.format(task=folder) + _COMMON, encoding="utf-8")
    _write_examples(folder, rows)


def _write_reverse(folder: Path) -> Split:
    """Write the task of the quickstart, with rows that tell rewards whether they are held out."""
    write_task(folder, digits=3, hidden_size=32)
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
    draw = random.Random(0)

    def rows(name: str, *, checked: bool) -> Sequence[Row]:
        lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        found = [json.loads(line) | {"checked": checked} for line in lines]
        return [row | {"wrong": _digits(draw, row["answer"])} for row in found]

    return Split(rows("train", checked=False), rows("test", checked=True))


def _digits(draw: random.Random, right: str) -> list[str]:
    """Return some answers that are not right."""
    drawn = {"".join(draw.choices("0123456789", k=len(right))) for _ in range(8)}
    return sorted(drawn - {right})


def _write_sorting(folder: Path) -> Split:
    """Write the model of the recipe, and rows whose answer is the first place at which the digits fall."""
    write_tiny_model(
        folder / "model",
        alphabet="0123456789:!",
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        initializer_range=0.08,
    )

    def row(task: Mapping[str, Any]) -> Row:
        digits = task["digits"]
        right = next(str(place) for place in (1, 2) if digits[place - 1] > digits[place])
        return {"prompt": f"{digits}:", "answer": right, "wrong": sorted({*"123"} - {right})}

    return _drawn(Sorting(SortingConfig(length=3, style="text")), row)


def _write_shapes(folder: Path) -> Split:
    """Write the model of the recipe, images, and rows whose answer is the first letter of a color."""
    write_tiny_vision_model(
        folder / "model",
        "qwen2_5_vl",
        alphabet="rgbycnpkst?01234",
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        vision_layers=1,
        initializer_range=0.08,
    )
    environment = Shapes(ShapesConfig(questions=("color",), size=SIDE, style="letters"))
    (folder / "images").mkdir(exist_ok=True)

    def row(task: Mapping[str, Any]) -> Row:
        scene, file = Scene.of(task["scene"]), f"images/{task['key']}.png"
        scene.image(SIDE).save(folder / file)
        right = scene.color[0]
        return {
            "prompt": [{"role": "user", "content": "<image>c"}],
            "images": [file],
            "answer": right,
            "wrong": sorted({*"rgby"} - {right}),
        }

    return _drawn(environment, row)


def _drawn(environment: Sorting | Shapes, row: Callable[[Mapping[str, Any]], Row]) -> Split:
    """Return rows of an environment's tasks."""
    counts = {"train": ROWS, "eval": HELD_OUT}
    train, held_out = (
        [row(task) for task in islice(environment.tasks(split), count)]
        for split, count in counts.items()
    )
    return Split(train, held_out)


def _write_examples(folder: Path, rows: Split) -> None:
    """Write rows and pairs, right ones, with noise, and random ones."""
    draw = random.Random(0)
    write_rows(folder / "train.jsonl", rows.train)
    write_rows(folder / "test.jsonl", rows.held_out)
    write_rows(folder / "few.jsonl", rows.train[:FEW])
    wrong = [row | {"answer": draw.choice(row["wrong"])} for row in rows.train]
    write_rows(folder / "noisy.jsonl", _mixed(draw, rows.train, wrong))
    right = [_pair(row, row["answer"], draw.choice(row["wrong"])) for row in [*rows.train] * 3]
    write_rows(folder / "pairs.jsonl", right)
    swapped = [pair | {"chosen": pair["rejected"], "rejected": pair["chosen"]} for pair in right]
    write_rows(folder / "noisy_pairs.jsonl", _mixed(draw, right, swapped))
    both = [draw.sample([row["answer"], *row["wrong"]], 2) for row in [*rows.train] * 3]
    write_rows(
        folder / "random_pairs.jsonl",
        [_pair(row, *two) for row, two in zip([*rows.train] * 3, both, strict=True)],
    )
    held = [_pair(row, row["answer"], draw.choice(row["wrong"])) for row in rows.held_out]
    write_rows(folder / "test_pairs.jsonl", held)


def _mixed(draw: random.Random, right: Sequence[Row], wrong: Sequence[Row]) -> Sequence[Row]:
    """Return rows of which a share is wrong."""
    return [bad if draw.random() < NOISE else good for good, bad in zip(right, wrong, strict=True)]


def _pair(row: Row, chosen: str, rejected: str) -> Row:
    asked = {key: row[key] for key in ("prompt", "images") if key in row}
    return asked | {"chosen": chosen, "rejected": rejected}


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a line of JSON for each row, without the answers that are not right."""
    lines = ({key: value for key, value in row.items() if key != "wrong"} for row in rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in lines), encoding="utf-8")


TASKS = {
    "reverse": BenchTask(config=REVERSE, rate=5e-3, write=_write_reverse, is_played=False),
    "sorting": BenchTask(config=SORTING, rate=2e-3, write=_write_sorting),
    "shapes": BenchTask(
        config=SHAPES,
        rate=2e-3,
        write=_write_shapes,
        flags="--model.vision vlm --data.image_key images",
    ),
}
"""Task by name; ``reverse`` is that of ``rlhf quickstart``."""
