"""The environments of examples/: they are installed, make tasks, and their recipes train; two of them learn."""

import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from rlhf_cli.main import main
from rlhf_core.plugins import load

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PACKAGES = {
    path.parent.name: path.parent.name.removeprefix("rlhf-env-").replace("-", "_")
    for path in sorted(EXAMPLES.glob("rlhf-env-*/pyproject.toml"))
}
"""Distribution -> name of its environment."""

QUIET = ("--log.progress", "off", "--log.tensorboard", "false", "--log.curve", "false")


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    """The paths in the recipes start at the root of the repository."""
    monkeypatch.chdir(ROOT)


def metrics_of(output: Path) -> list[dict[str, float]]:
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [line["metrics"] for line in lines if "metrics" in line]


def prepared(package: str, output: Path) -> Path:
    script = EXAMPLES / package / "prepare.py"
    subprocess.run([sys.executable, script, "--output", output], check=True, capture_output=True)
    return output / "model"


def trained(
    package: str, model: Path, output: Path, *flags: str, recipe: str = "run.toml"
) -> list[dict[str, float]]:
    words = [
        "train",
        "-c",
        str(EXAMPLES / package / recipe),
        "--model",
        str(model),
        "--output",
        str(output),
    ]
    assert main([*words, *QUIET, *flags]) == 0
    return metrics_of(output)


def test_there_are_packages():
    assert {"countdown", "guess_number", "frozen_lake", "calculator", "shapes", "sorting"} <= set(
        PACKAGES.values()
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_is_found_by_its_entry_point_and_makes_tasks_of_its_own(package):
    registered = load("").get("rlhf_environments", PACKAGES[package])
    environment = registered.load()(registered.validate({}))
    train = list(islice(iter(environment.tasks("train")), 8))
    held_out = list(islice(iter(environment.tasks("eval")), 8))

    assert len({row["key"] for row in [*train, *held_out]}) == 16
    assert all(json.loads(json.dumps(row)) == row for row in train)


@pytest.mark.slow
def test_two_steps_of_guess_number(tmp_path):
    model = prepared("rlhf-env-guess-number", tmp_path / "data")
    small = ("--steps", "2", "--rollout.batch_size", "4", "--eval.max_samples", "4")
    lines = trained("rlhf-env-guess-number", model, tmp_path / "run", *small)

    assert len(lines) == 2
    assert all(1.0 <= line["rollout/turns"] <= 4.0 for line in lines)
    assert all(line["rollout/env/guesses"] == line["rollout/turns"] for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    "package",
    [
        pytest.param(name, marks=() if name == "rlhf-env-calculator" else pytest.mark.matrix)
        for name in PACKAGES
    ],
)
def test_a_package_passes_every_check(package, capsys):
    assert main(["check", PACKAGES[package]]) == 0
    assert ", 0 failed" in capsys.readouterr().out


def shown_calls(folder: Path, *flags: str) -> Path:
    """The calculator's model after supervised updates on demonstrations."""
    model = prepared("rlhf-env-calculator", folder / "data")
    rows = folder / "data/demonstrations.jsonl"
    recipe = ["sft", "-c", str(EXAMPLES / "rlhf-env-calculator/sft.toml"), "--data", str(rows)]
    words = ["--model", str(model), "--output", str(folder / "sft")]
    assert main([*recipe, *words, *QUIET, *flags]) == 0
    return folder / "sft/model"


@pytest.mark.slow
def test_two_steps_of_the_calculator(tmp_path):
    """Calls are parsed from token ids, answered, and rewarded. Hardly any update is needed to see some."""
    model = shown_calls(tmp_path, "--steps", "40")
    small = ("--steps", "2", "--rollout.batch_size", "8", "--eval.max_samples", "4")
    lines = trained("rlhf-env-calculator", model, tmp_path / "run", *small)

    assert len(lines) == 2
    assert all(line["rollout/env/tools/calls"] > 0.3 for line in lines)
    assert all(line["rollout/env/tools/errors"] < 1.0 for line in lines)
    assert all(line["rollout/env/reward/called"] > 0.0 for line in lines)


@pytest.mark.slow
@pytest.mark.learning
def test_the_calculator_is_learned_from_a_few_demonstrations(tmp_path):
    lines = trained("rlhf-env-calculator", shown_calls(tmp_path), tmp_path / "run")
    correct = [line["rollout/env/reward/correct"] for line in lines]

    assert sum(correct[:5]) / 5 < 0.4
    assert sum(correct[-20:]) / 20 > 0.85


@pytest.mark.slow
@pytest.mark.learning
def test_guess_number_is_learned_beyond_what_guessing_without_hints_finds(tmp_path):
    """Four guesses without hints find one number of ten in four of ten episodes."""
    model = prepared("rlhf-env-guess-number", tmp_path / "data")
    lines = trained("rlhf-env-guess-number", model, tmp_path / "run")
    found = [line["rollout/env/found"] for line in lines]

    assert sum(found[:5]) / 5 < 0.4
    assert sum(found[-20:]) / 20 > 0.9


@pytest.mark.slow
@pytest.mark.learning
def test_countdown_is_learned_from_answers_that_are_right_by_chance(tmp_path):
    """An operator drawn at random is right in about one of four problems."""
    package = "rlhf-env-countdown"
    model = prepared(package, tmp_path / "data")
    rows = tmp_path / "data/demonstrations.jsonl"
    recipe = ["sft", "-c", str(EXAMPLES / package / "sft.toml"), "--data", str(rows)]
    shown = tmp_path / "sft"
    assert main([*recipe, "--model", str(model), "--output", str(shown), *QUIET]) == 0

    lines = trained(package, shown / "model", tmp_path / "run")
    solved = [line["rollout/env/solved"] for line in lines]

    assert sum(solved[:5]) / 5 < 0.3
    assert sum(solved[-20:]) / 20 > sum(solved[:5]) / 5 + 0.15


@pytest.mark.slow
@pytest.mark.learning
def test_frozen_lake_is_learned_from_random_weights(tmp_path):
    """Random letters never cross a lake."""
    model = prepared("rlhf-env-frozen-lake", tmp_path / "data")
    lines = trained("rlhf-env-frozen-lake", model, tmp_path / "run")
    goal = [line["rollout/env/goal"] for line in lines]

    assert sum(goal[:5]) / 5 < 0.05
    assert sum(goal[-20:]) / 20 > 0.25


@pytest.mark.slow
@pytest.mark.learning
def test_sorting_is_learned_from_random_weights(tmp_path):
    """Letters at random sort about one of eight rows."""
    model = prepared("rlhf-env-sorting", tmp_path / "data")
    lines = trained("rlhf-env-sorting", model, tmp_path / "run", "--estimator", "rloo")
    done = [line["rollout/env/sorted"] for line in lines]

    assert sum(done[:5]) / 5 < 0.3
    assert sum(done[-20:]) / 20 > 0.75
    assert max(line["response/truncated"] for line in lines) == 0.0
    assert "likely learns nothing" not in (tmp_path / "run/run.log").read_text()


@pytest.mark.slow
@pytest.mark.learning
def test_sorting_without_an_entropy_bonus_stops_exploring_and_says_so_once(tmp_path):
    """Two of three rows are sorted by then, the others never, and the entropy is that of one answer to each prompt."""
    model = prepared("rlhf-env-sorting", tmp_path / "data")
    plain = ("--estimator", "group_norm", "--algo.loss.entropy_coef", "0", "--steps", "70")

    lines = trained("rlhf-env-sorting", model, tmp_path / "run", *plain)

    assert lines[-1]["policy/entropy"] < 0.05
    warnings = (tmp_path / "run/run.log").read_text().split("this run likely learns nothing")[1:]
    assert len(warnings) == 1
    assert "more: over the last 20 steps" in warnings[0]
    assert "--algo.loss.entropy_coef" in warnings[0]


def right_of(lines: list[dict[str, float]], count: int = 10) -> float:
    """The share of right answers in the last steps."""
    return sum(line["rollout/env/right"] for line in lines[-count:]) / count


@pytest.mark.slow
def test_two_steps_of_shapes(tmp_path):
    model = prepared("rlhf-env-shapes", tmp_path / "data")
    small = ("--steps", "2", "--rollout.batch_size", "4", "--eval.max_samples", "4")
    lines = trained("rlhf-env-shapes", model, tmp_path / "run", *small)

    assert len(lines) == 2
    assert len([path for path in (tmp_path / "run/media").rglob("*.png")]) > 4


@pytest.mark.slow
@pytest.mark.learning
def test_colors_are_learned_from_images_and_not_without(tmp_path):
    """Guessing names one color of four. 20 steps of a model that sees take half a minute on one core."""
    model = prepared("rlhf-env-shapes", tmp_path / "data")
    short = ("--train.steps", "20", "--eval.every", "0", "--eval.at_start", "false")
    seeing = trained("rlhf-env-shapes", model, tmp_path / "seeing", *short)
    blind = trained(
        "rlhf-env-shapes", model, tmp_path / "blind", *short, "--env.shapes.image", "false"
    )

    assert right_of(seeing, 5) >= 0.5
    assert right_of(blind, 5) < 0.35


def evaluations(output: Path) -> list[dict[str, float]]:
    """What each evaluation of ``shapes`` says, by the end of its name."""
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    start = "eval/shapes/T0/"
    return [
        {name.removeprefix(start): value for name, value in line["eval"].items()}
        for line in lines
        if "eval" in line
    ]


def asked_in(lines: list[dict[str, float]]) -> float:
    """The share of sampled episodes in which a part of the image was asked for."""
    return sum(line["rollout/env/zoomed"] for line in lines) / len(lines)


@pytest.mark.slow
@pytest.mark.learning
def test_a_part_of_an_image_is_asked_for_where_it_shows_the_answer(tmp_path):
    """Three minutes on one core. By its most probable answers the policy asks for a part of no scene of the split eval
    at first. Asking shows the color in five of eight quarters: 0.72 with guesses, where guessing alone is 0.25. Without
    images asking shows nothing, and is not learned."""
    model = prepared("rlhf-env-shapes", tmp_path / "data")
    blind_words = ("--env.shapes.image", "false", "--train.steps", "80")
    runs = {"seeing": (), "blind": blind_words}
    seeing, blind = (
        trained(
            *("rlhf-env-shapes", model, tmp_path / name, "--eval.every", "120", *flags),
            recipe="zoom.toml",
        )
        for name, flags in runs.items()
    )
    first, last = evaluations(tmp_path / "seeing")

    assert asked_in(seeing[:5]) <= 0.25
    assert asked_in(seeing[-10:]) >= 0.5
    assert asked_in(blind[-10:]) <= 0.35
    assert right_of(seeing) >= 0.6
    assert right_of(blind) <= 0.35
    assert first["rollout/env/zoomed"] <= 0.1
    assert last["rollout/env/zoomed"] >= 0.6
    assert last["reward"] >= 0.5
