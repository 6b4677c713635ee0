"""Small runs of several kinds that ``replays.py`` does again, the options that it changes, and what is read of them."""

from __future__ import annotations

import contextlib
import io
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_cli.main import main as rlhf
from rlhf_testing.tiny import write_tiny_model

STEPS = 12
EVERY = 4
"""Steps between the checkpoints of the runs that are replayed."""
REWARD = """
def score(response, row):
    return sum(character == "1" for character in response) / 8 - 0.1 * len(response) / 8


def length(response, row):
    return float(len(response)) / 8
"""
TURNS = (
    "--executor multi_turn --env echo_digits --rollout.max_length 96 --data.max_prompt_tokens 32"
)
KINDS = {
    "grpo": "--estimator grpo --algo.kl.coef 0.01 --train.batch_size 8",
    "critic": "--estimator gae --critic.adam.lr 0.01 --train.inner_epochs 2",
    "lora": "--estimator grpo --actor.adapter lora",
    "turns": f"--estimator rloo {TURNS}",
    "dpo": "",
    "filter": "--estimator grpo --rollout.filters zero_variance",
}
"""Kinds of runs, with their options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A counterfactual: a kind of run, and the options that change in it."""

    kind: str
    name: str
    words: list[str] = field(default_factory=list)


def changes(draw: random.Random, base: Path) -> list[Change]:
    """Return counterfactuals with values that are drawn."""
    rate = f"{10 ** draw.uniform(-3, -1.3):.4g}"
    options = {
        ("grpo", "learning rate"): f"--actor.adam.lr {rate}",
        ("grpo", "clip range"): f"--algo.loss.ppo.clip_high {draw.uniform(0.0001, 0.005):.3g}",
        ("grpo", "loss"): f"--loss {draw.choice(['gspo', 'cispo'])}",
        ("grpo", "KL coefficient"): f"--algo.kl.coef {draw.uniform(0.1, 1):.3g}",
        ("grpo", "entropy coefficient"): f"--algo.loss.entropy_coef {draw.uniform(0.01, 0.3):.3g}",
        ("grpo", "estimator"): f"--estimator {draw.choice(['rloo', 'reinforce_baseline'])}",
        ("grpo", "reward"): f"--reward {base}/rewards.py:length",
        ("grpo", "batch size"): f"--train.batch_size {draw.choice(['4', '16'])}",
        ("grpo", "inner epochs"): f"--train.inner_epochs {draw.choice(['2', '3'])}",
        ("critic", "lambda"): f"--algo.advantage.gae.lambda_ {draw.uniform(0.1, 0.9):.3g}",
        (
            "critic",
            "critic's learning rate",
        ): f"--critic.adam.lr {10 ** draw.uniform(-3, -1.7):.3g}",
        ("grpo", "correction"): "--algo.correction.kind tis",
        ("grpo", "denominator"): "--algo.loss.old_logprobs rollout",
        (
            "filter",
            "filter",
        ): "--rollout.filters dynamic_sampling --rollout.dynamic_sampling.low -9",
        ("lora", "learning rate"): f"--actor.adam.lr {rate}",
        ("turns", "learning rate"): f"--actor.adam.lr {rate}",
        ("dpo", "learning rate"): f"--actor.adam.lr {rate}",
        ("dpo", "weight decay"): f"--actor.adam.weight_decay {draw.uniform(0.1, 0.9):.3g}",
    }
    return [
        Change(kind=kind, name=name, words=words.split()) for (kind, name), words in options.items()
    ]


def write_task(base: Path, seed: int) -> None:
    """Write a model, prompts, pairs and rewards."""
    draw = random.Random(seed)
    write_tiny_model(base / "model", hidden_size=16, num_layers=1, num_heads=2, seed=seed)
    prompts = ["".join(draw.choices("0123456789", k=draw.randint(1, 4))) + "=" for _ in range(24)]
    rows = [{"prompt": prompt, "answer": prompt[0]} for prompt in prompts]
    pairs = [
        {"prompt": prompt, "chosen": prompt[:-1], "rejected": prompt[:-1] + "0"}
        for prompt in prompts * 2
    ]
    for name, lines in (("rows", rows), ("pairs", pairs)):
        (base / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (base / "rewards.py").write_text(REWARD)


def run_rlhf(words: list[str]) -> str:
    """Run ``rlhf WORDS`` in this process, and return what it printed.

    Raises:
        RuntimeError: its exit code was not 0.
    """
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = rlhf(words)
        except SystemExit as end:
            code = end.code
    if code:
        raise RuntimeError(f"rlhf {' '.join(words)}: {errors.getvalue().strip()}")
    return output.getvalue()


def train(base: Path, kind: str, run: Path, seed: int, *, every: int) -> None:
    """Do a run of a kind, which keeps all its checkpoints."""
    words = f"""--model {base}/model --output {run} --seed {seed} --actor.adam.lr 0.01 --checkpoint.every {every}
        --checkpoint.keep 99 --checkpoint.export false --log.progress off --log.summary false
        --log.tensorboard false --log.curve false {KINDS[kind]}"""
    if kind == "dpo":
        words += f" --data {base}/pairs.jsonl --train.steps {STEPS} --train.batch_size 4"
        run_rlhf(["dpo", *words.split()])
        return
    words += f""" --data {base}/rows.jsonl --reward {base}/rewards.py:score --steps {STEPS} --rollout.batch_size 4
        --rollout.n_samples_per_prompt 4 --rollout.max_new_tokens 6 --log.samples 99"""
    run_rlhf(["train", *words.split()])


def go_on(base: Path, change: Change, reference: Path, before: int, run: Path) -> None:
    """Go on with the option from the checkpoint of step ``before``; 0: from the beginning."""
    command = "dpo" if change.kind == "dpo" else "train"
    words = [command, "-c", str(reference / "config.toml"), "--output", str(run)]
    if before:
        words += ["--resume", str(checkpoint(reference, before))]
    run_rlhf([*words, *change.words])


def checkpoint(run: Path, step: int) -> Path:
    return run / f"checkpoints/step-{step:08d}"


def digests(run: Path, step: int) -> dict[str, str]:
    """Return the digest of each file of the roles behind a step: weights, optimizers and generators."""
    manifest = json.loads((checkpoint(run, step) / "manifest.json").read_text())
    return {name: digest for name, digest in manifest["files"].items() if "/" in name}


def first_difference(run: Path, other: Path, steps: range) -> str:
    """Return the first step and file that differ between two runs; empty: none does.

    Raises:
        RuntimeError: a checkpoint has no weights or no optimizer, so that nothing would be compared.
    """
    for step in steps:
        was, now = digests(run, step), digests(other, step)
        if not any("optimizer" in name for name in was) or len(was) < 2:
            raise RuntimeError(f"{checkpoint(run, step)}: no weights and optimizer in {list(was)}")
        for name in was | now:
            if was.get(name) != now.get(name):
                return f"step {step}, {name}"
    return ""


def has_same_weights(run: Path, other: Path, step: int) -> bool:
    """Return whether the policy's weights behind a step are the same."""
    was, now = (
        {
            name: digest
            for name, digest in digests(each, step).items()
            if name.startswith("policy/") and "optimizer" not in name
        }
        for each in (run, other)
    )
    return was == now


def samples(run: Path, step: int) -> list[tuple[str, str]]:
    """Return names and responses of a step's samples."""
    lines = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    return [(line["uid"], line["response"]) for line in lines if line["step"] == step]
