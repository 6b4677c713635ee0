"""Run folders as ``rlhf train`` leaves them, made of a few lines."""

import json

CHAT = "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n17 * 23?<|im_end|>\n<|im_start|>assistant\n"


def sample(uid="0.5.0.0", **changes):
    plain = {
        "step": 1, "uid": uid, "prompt": CHAT, "response": "391", "reward": 1.0, "rewards": {"exact": 1.0},
        "truncated": False,
    }  # fmt: skip
    return plain | changes


def write_lines(path, records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")


def write_run(folder, samples=(), evaluated=(), lr="0.001"):
    folder.mkdir(parents=True)
    write_lines(folder / "samples.jsonl", samples)
    write_lines(folder / "eval_samples.jsonl", evaluated)
    metrics = [
        {"step": step, "time_s": 2.0 * step, "metrics": {"reward/mean": 0.25 * step}, "timing": {"step_s": 2.0}}
        for step in (1, 2)
    ]  # fmt: skip
    write_lines(folder / "metrics.jsonl", metrics)
    (folder / "config.toml").write_text(
        "# A run's whole configuration, by rlhf-core 0.1.0. Repeat it: rlhf train -c THIS_FILE\n"
        f'seed = 42\n[actor.adam]\nlr = {lr}\n[data]\ntrain = ["a.jsonl"]\n'
    )
    return folder
