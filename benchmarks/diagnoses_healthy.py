"""Options of healthy runs for ``diagnoses.py``, drawn at random: tiny models that learn within some seconds.

One task is to reverse two or three digits, so that what is right depends on the prompt. Models have a width of 16 or
32 and random weights. The others are ``sorting`` and ``shapes``, whose model may have learned a part of the task
before. Most runs play; some learn from rows and pairs.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from diagnoses_tasks import TASKS

from rlhf_cli.quickstart.files import ALPHABET, write_task
from rlhf_testing.tiny import write_tiny_model

FAMILIES = ("qwen3", "qwen3", "llama", "gemma3")
SIZES = ((16, 1), (32, 1), (32, 2))
"""Width and number of layers."""
REWARDS = '''\
"""Rewards of healthy runs: shares of right digits, exact answers, points, costs."""


def share(response, answer):
    return sum(a == b for a, b in zip(response, answer)) / len(answer)


def first(response, answer):
    return float(response[:1] == answer[:1])


def points(response, answer, truncated):
    right = sum(a == b for a, b in zip(response, answer))
    return 2.0 * right if not truncated and len(response) <= len(answer) else 1.0 * right


def cost(response, answer):
    return -10.0 * sum(a != b for a, b in zip(answer, response.ljust(len(answer))))


def ended(response, answer, truncated):
    return 0.0 if truncated else 0.2 + share(response, answer)
'''
REWARD_NAMES = ("share", "first", "points", "cost", "ended")
QUIET = "--checkpoint.export false --log.progress off --log.summary false --log.curve false --runtime.local.threads 1"
BASE = f"""--data.max_prompt_tokens 8 --eval.every 10 --eval.max_samples 8 --checkpoint.at_end false
    --log.tensorboard false --engine.embedded.compile false {QUIET}"""
EXAMPLES = f"--train.batch_size 16 {QUIET}"
GROUPED = ("reinforce_baseline", "rloo", "grpo", "dr_grpo", "group_norm", "opo", "maxrl")


def write_healthy(folder: Path, seed: int) -> None:
    """Write rewards, rows and models of the runs that reverse digits."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rewards.py").write_text(REWARDS, encoding="utf-8")
    for digits in (2, 3):
        (folder / str(digits)).mkdir(exist_ok=True)
        write_task(folder / str(digits), digits=digits, held_out=20 * (digits - 1) ** 2)
        _write_pairs(folder / str(digits))
    for family in set(FAMILIES):
        for width, layers in SIZES:
            write_tiny_model(
                folder / f"{family}-{width}-{layers}",
                family,
                alphabet=ALPHABET,
                hidden_size=width,
                num_layers=layers,
                initializer_range=0.08,
                seed=seed,
            )


def healthy_words(task: str, folder: Path, seed: int) -> tuple[str, list[str]]:
    """Return command and flags of a healthy run.

    Args:
        folder: what ``write_healthy`` wrote, for ``reverse``; the task's folder for others.
    """
    draw = random.Random(f"{task} {seed}")
    words = ["--seed", str(draw.randrange(10**6))]
    if task != "reverse":
        return _in_an_environment(draw, task, folder, words)
    command = draw.choices(("train", "sft", "rm", "dpo"), (17, 1, 1, 1))[0]
    digits = draw.choice((2, 3))
    width, layers = draw.choice(SIZES)
    model = folder / f"{draw.choice(FAMILIES)}-{width}-{layers}"
    words += ["--model.path", str(model)]
    if command == "train":
        return command, [*words, *_play(draw, folder, digits)]
    return command, [*words, *EXAMPLES.split(), *_examples(draw, command, folder / str(digits))]


def _in_an_environment(
    draw: random.Random, task: str, folder: Path, words: list[str]
) -> tuple[str, list[str]]:
    """Return command and flags of a healthy run of ``sorting`` or ``shapes``; some begin with an able model."""
    command = draw.choices(("train", "sft", "rm", "dpo"), (17, 1, 1, 1))[0]
    begun = "able" if draw.random() < 0.25 else "model"
    if command != "train":
        words += [
            "--model.path",
            str(folder / "model"),
            *EXAMPLES.split(),
            *TASKS[task].flags.split(),
        ]
        return command, [*words, *_examples(draw, command, folder)]
    batch, samples = draw.choice(((16, 8), (32, 4), (16, 8), (8, 8)))
    words += f"""-c {folder}/train.toml --model.path {folder}/{begun}
        --rollout.batch_size {batch} --rollout.n_samples_per_prompt {samples}
        --rollout.temperature {draw.choice((0.8, 1.0, 1.0, 1.2))}
        --actor.adam.lr {10 ** draw.uniform(-3.2, -2.6):.2g}
        --algo.loss.entropy_coef {draw.choice((0.01, 0.02, 0.05, 0.1))}
        --eval.max_samples {draw.choice((8, 16, 32))}
        --train.steps {draw.choices((40, 60, 120), (6, 3, 1))[0]}""".split()
    if task == "sorting":
        words += ["--env.sorting.no_move_reward", draw.choice(("0.0", "-0.1", "-0.5"))]
    else:
        words += ["--env.shapes.colors", draw.choice(("2", "3", "4"))]
        words += ["--env.shapes.most", draw.choice(("1", "2", "4"))]
    return command, [*words, *_algorithm(draw), *_system(draw)]


def _play(draw: random.Random, folder: Path, digits: int) -> list[str]:
    reward = draw.choice(REWARD_NAMES)
    batch, samples = draw.choice(((8, 8), (16, 4), (8, 4), (4, 8)))
    task = folder / str(digits)
    words = f"""--data.train {task}/train.jsonl --eval.data held_out={task}/test.jsonl
        --reward.use {folder}/rewards.py:{reward} --reward.{reward}.isolate false
        --rollout.batch_size {batch} --rollout.n_samples_per_prompt {samples}
        --rollout.max_new_tokens {draw.choice((digits, digits + 1, digits + 1, digits + 3, 12))}
        --rollout.temperature {draw.choice((0.8, 1.0, 1.0, 1.2))}
        --actor.adam.lr {10 ** draw.uniform(-2.7, -2.0):.2g}
        --algo.loss.entropy_coef {draw.choice((0.0, 0.01, 0.05, 0.1))}
        --train.steps {draw.choices((40, 60, 120), (6, 3, 1))[0]} {BASE}""".split()
    return [*words, *_algorithm(draw), *_system(draw)]


def _system(draw: random.Random) -> list[str]:
    """Return how a run samples and records."""
    words: list[str] = []
    if draw.random() < 0.2:
        words += ["--rollout.max_staleness", draw.choice(("1", "2", "4"))]
    elif draw.random() < 0.3:
        words += ["--engine.embedded.weights", "copy"]
    if draw.random() < 0.15:
        words += ["--rollout.filters", "zero_variance"]
    if draw.random() < 0.15 and "--rollout.max_staleness" not in words:  # refused beside it
        words += ["--rollout.top_p", "0.95"]
    if draw.random() < 0.15:
        words += ["--model.dtype", "bfloat16"]
    if draw.random() < 0.4:
        words += ["--log.samples", "32", "--observers.use", "token_files"]
        words += ["--observers.token_files.every", draw.choice(("1", "10"))]
    return words


def _algorithm(draw: random.Random) -> list[str]:
    estimator = draw.choice((*GROUPED, "gae", "reinforce"))
    words = ["--algo.advantage.estimator", estimator]
    if estimator == "gae":
        words += ["--critic.adam.lr", "5e-3"]
    loss = draw.choice(("ppo", "ppo", "ppo", "gspo", "cispo"))
    if loss != "ppo":
        words += ["--algo.loss.policy", loss]
    if draw.random() < 0.3:
        words += ["--train.inner_epochs", draw.choice(("2", "3"))]
    if draw.random() < 0.3:
        words += ["--algo.kl.coef", draw.choice(("0.001", "0.01", "0.05"))]
    return words


def _examples(draw: random.Random, command: str, task: Path) -> Sequence[str]:
    rate = 10 ** draw.uniform(-2.7, -2.0)
    if command == "sft":
        words = f"--data.train {task}/train.jsonl --data.prompt_key prompt --data.response_key answer --train.epochs 4"
        return [*words.split(), "--actor.adam.lr", f"{rate:.2g}"]
    words = f"--data.train {task}/pairs.jsonl"
    return [*words.split(), *(["--actor.adam.lr", f"{rate / 3:.2g}"] if command == "dpo" else [])]


def _write_pairs(task: Path) -> None:
    """Write pairs whose better answer is right."""
    rows = [json.loads(line) for line in (task / "train.jsonl").read_text().splitlines()]
    draw, lines = random.Random(0), []
    while len(lines) < 1600:
        row = draw.choice(rows)
        wrong = "".join(draw.choices("0123456789", k=len(row["answer"])))
        if wrong != row["answer"]:
            pair = {"prompt": row["prompt"], "chosen": row["answer"], "rejected": wrong}
            lines.append(json.dumps(pair) + "\n")
    (task / "pairs.jsonl").write_text("".join(lines), encoding="utf-8")
