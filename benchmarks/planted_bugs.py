"""Five small runs with a bug planted in each, one page that shows all of them, and pictures of it.

    python benchmarks/planted_bugs.py --output runs/planted
    CHROMIUM=/usr/bin/chromium python benchmarks/planted_bugs.py --output runs/planted --pictures docs/finding-a-bug

``docs/finding-a-bug.md`` goes through the page. The task is that of ``rlhf quickstart`` (reverse digits, a model with
random weights), for the wrong mask that of ``examples/two_turn``. Prints what ``rlhf doctor`` says of each run.
Pictures need Chromium (``CHROMIUM``, or one on the path) and are taken at the addresses of ``PICTURES``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from rlhf_cli.main import main as rlhf
from rlhf_cli.quickstart.files import write_task
from rlhf_core.contracts import EpisodeEnd, Trajectory
from rlhf_plugin_agents.episode import Episode
from rlhf_testing.tiny import write_tiny_model

ALPHABET = "0123456789= "
COMMON = """\
[actor.adam]
lr = {lr}
[algo.loss]
entropy_coef = {entropy}
[train]
steps = {steps}
[checkpoint]
at_end = false
export = false
[log]
samples = 64
progress = "off"
summary = false
tensorboard = false
curve = false
[observers]
use = ["token_files"]
[runtime.local]
threads = 1
"""
DIGITS = """\
[model]
path = "{task}/model"
[data]
train = ["{task}/train.jsonl"]
max_prompt_tokens = 8
[reward]
use = ["{task}/rewards.py:{reward}"]
[rollout]
batch_size = 16
n_samples_per_prompt = 4
max_new_tokens = {new_tokens}
[algo.advantage]
estimator = "reinforce_baseline"
[eval]
data = ["held_out={task}/test.jsonl"]
every = 10
max_samples = 64
"""
TWO_TURNS = """\
[model]
path = "{task}/two_turn"
[env]
use = ["echo_after_hint"]
[env.echo_after_hint]
num_digits = 10
[rollout]
executor = "multi_turn"
batch_size = 16
n_samples_per_prompt = 4
max_new_tokens = 2
max_length = 32
[rollout.multi_turn]
max_turns = 2
"""
REWARDS = '''\
"""Rewards: one that is right, one that is hacked, one that is too strict."""


def digits(response, answer):
    """Share of the digits that stand where they belong."""
    return sum(a == b for a, b in zip(response, answer)) / len(answer)


def phrase(response, answer, checked):
    """A judge that likes a phrase; held-out rows are checked."""
    return digits(response, answer) if checked else digits(response, answer) + response.count("7 ")


def exact(response, answer):
    """1 for the whole answer alone: a model that knows nothing never gets it."""
    return float(response == answer)


def whole(response, answer, truncated):
    """The digits, if the answer has ended by itself."""
    return 0.0 if truncated else digits(response, answer)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A run with a bug."""

    reward: str = "digits"
    new_tokens: int = 8
    lr: float = 5e-3
    entropy: float = 0.05
    steps: int = 60
    forgets_last: bool = False
    """Whether the two-turn task is played, with a mask that leaves out the last answer."""


PLANTED = {
    "a": Planted(reward="phrase", entropy=0.02),
    "b": Planted(forgets_last=True, entropy=0.02, lr=2e-3),
    "c": Planted(reward="exact"),
    "d": Planted(reward="whole", new_tokens=3, steps=150),
    "e": Planted(lr=0.5),
}
PICTURES = {
    "curves": "/curves",
    "hacked": "/group/0//{last}/{group}",
    "mask": "/rollout/1//{last}/{uid}/t9",
    "no_signal": "/rollouts/2",
    "cut_off": "/group/3//1/{first_group}",
    "one_answer": "/group/4//{last}/{group}",
}
"""Picture -> what stands behind # in the page: the run's place in it, a step, and a group or rollout of that step."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs and page")
    parser.add_argument("--only", nargs="*", default=list(PLANTED), help="names of runs")
    parser.add_argument("--pictures", type=Path, help="folder of the pictures; unset: none")
    arguments = parser.parse_args()
    task = arguments.output / "task"
    write_tasks(task)
    for name in arguments.only:
        began = time.monotonic()
        run = train(PLANTED[name], task, arguments.output / name)
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        rlhf(["doctor", str(run)])
    page = arguments.output / "planted.html"
    runs = [arguments.output / name for name in PLANTED if (arguments.output / name).exists()]
    rlhf(["view", *map(str, runs), "--export", str(page)])
    if arguments.pictures is not None and len(runs) == len(PLANTED):
        take_pictures(page, runs, arguments.pictures)


def write_tasks(task: Path) -> None:
    """Write rows, rewards and models; held-out rows are those that ``phrase`` checks."""
    task.mkdir(parents=True, exist_ok=True)
    write_task(task, digits=3, hidden_size=32)
    for name, checked in (("train", False), ("test", True)):
        rows = [json.loads(line) for line in (task / f"{name}.jsonl").open(encoding="utf-8")]
        lines = [json.dumps(row | {"checked": checked}) + "\n" for row in rows]
        (task / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    (task / "rewards.py").write_text(REWARDS, encoding="utf-8")
    shutil.rmtree(task / "model")
    for name, alphabet in (("model", ALPHABET), ("two_turn", "0123456789:=?hint")):
        write_tiny_model(
            task / name, alphabet=alphabet, hidden_size=64, num_layers=2, num_heads=4, seed=0
        )


def train(planted: Planted, task: Path, run: Path) -> Path:
    """Train a run anew, and return its folder."""
    shutil.rmtree(run, ignore_errors=True)
    text = (TWO_TURNS if planted.forgets_last else DIGITS) + COMMON
    config = task / f"{run.name}.toml"
    values = {name: getattr(planted, name) for name in ("reward", "new_tokens", "lr", "entropy")}
    config.write_text(text.format(task=task, steps=planted.steps, **values), encoding="utf-8")
    with masked_wrongly() if planted.forgets_last else contextlib.nullcontext():
        code = rlhf(["train", "-c", str(config), "--output", str(run)])
    if code:
        raise SystemExit(f"rlhf train -c {config} ended with {code}")
    return run


@contextlib.contextmanager
def masked_wrongly() -> Iterator[None]:
    """Let ``multi_turn`` leave the last answer of the policy out, as an executor with this bug would."""
    right = Episode.trajectories

    def wrong(self: Episode, end: EpisodeEnd) -> list[Trajectory]:
        return [without_last_turn(trajectory) for trajectory in right(self, end)]

    with mock.patch.object(Episode, "trajectories", wrong):
        yield


def without_last_turn(trajectory: Trajectory) -> Trajectory:
    """Return a trajectory whose last turn counts as the environment's; its reward goes to the turn before."""
    *before, last = trajectory.turns
    if not before:
        return trajectory
    mask = trajectory.action_mask.copy()
    mask[last.start :] = False
    kept = int(mask.sum())
    reward = (before[-1].reward or 0.0) + (last.reward or 0.0)
    return replace(
        trajectory,
        action_mask=mask,
        rollout_logprobs=trajectory.rollout_logprobs[:kept],
        weight_version=trajectory.weight_version[:kept],
        turns=(*before[:-1], replace(before[-1], reward=reward)),
    )


def names_of(run: Path) -> dict[str, str]:
    """Return the last step of a run, its last rollout and that one's group, and the first group of the first step."""
    lines = (run / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    first, last = json.loads(lines[0]), json.loads(lines[-1])
    group, first_group = (".".join(each["uid"].split(".")[:2]) for each in (last, first))
    return {
        "last": str(last["step"]),
        "uid": last["uid"],
        "group": group,
        "first_group": first_group,
    }


def take_pictures(page: Path, runs: Sequence[Path], folder: Path) -> None:
    """Take a picture of each place of the page.

    Raises:
        SystemExit: there is no Chromium.
    """
    names = (os.environ.get("CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    browser = next(filter(None, (shutil.which(name) for name in names if name)), None)
    if browser is None:
        raise SystemExit("pictures need Chromium: install it, or set CHROMIUM to its program")
    folder.mkdir(parents=True, exist_ok=True)
    for name, pattern in PICTURES.items():
        words = pattern.split("/")
        place = pattern.format(**names_of(runs[int(words[2])])) if "{" in pattern else pattern
        with tempfile.TemporaryDirectory() as profile:
            flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
            flags += ["--virtual-time-budget=20000", f"--user-data-dir={profile}"]
            flags += ["--window-size=1100,640", f"--screenshot={folder / name}.png"]
            address = f"{page.resolve().as_uri()}#{place}"
            subprocess.run([browser, *flags, address], check=True, capture_output=True, timeout=300)
        shrink(folder / f"{name}.png")


def shrink(picture: Path) -> None:
    """Write a picture again with 64 colors, a third of its size."""
    from PIL import Image

    with Image.open(picture) as image:
        small = image.convert("RGB").quantize(64)
    small.save(picture, optimize=True)


if __name__ == "__main__":
    main()
