"""What ``rlhf audit`` names: faults planted in a sampler's recorded log-probs, and healthy runs, not to be blamed.

    python benchmarks/audits.py --healthy 40

The runs are real steps of ``rlhf train`` on the task of ``rlhf quickstart``. A fault replaces the sampler's column by
what a perturbed engine computes: own code with a cache, token by token, which shares nothing with the audit. That of
top-p is a run whose engine truncates while its ``config.toml`` is made to say that it does not. Causes
that the audit has no hypothesis for are planted too: there the right answer is that none explains the gap.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlhf_cli.main import main as rlhf
from rlhf_cli.quickstart.files import write_task

TOKENS = "tokens/step-00000001.parquet"
Engine = Callable[[PreTrainedModel, list[int], int], torch.Tensor]
"""Model, token ids and length of the prompt -> (T - 1, V) log-probs."""


def cached(model: PreTrainedModel, ids: list[int], positions: Sequence[int]) -> torch.Tensor:
    """Return (len(ids), V) logits, one token at a time with a cache."""
    past, rows = None, []
    for token, position in zip(ids, positions, strict=True):
        output = model(
            input_ids=torch.tensor([[token]]),
            position_ids=torch.tensor([[position]]),
            past_key_values=past,
            use_cache=True,
        )
        past = output.past_key_values
        rows.append(output.logits[0, -1])
    return torch.stack(rows)


def plain(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
    return cached(model, ids, range(len(ids))).log_softmax(-1)


def scaled(factor: float) -> Engine:
    return lambda model, ids, prompt: (plain(model, ids, prompt) * factor).log_softmax(-1)


def changed(change: Callable[[PreTrainedModel], object]) -> Engine:
    def engine(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
        model = copy.deepcopy(model)
        with torch.random.fork_rng():
            torch.manual_seed(7)
            change(model)
            return plain(model, ids, prompt).float()

    return engine


def other_rope(model: PreTrainedModel) -> None:
    model.model.rotary_emb.inv_freq.copy_(
        1.0 / 5e5 ** (torch.arange(0, model.config.head_dim, 2) / model.config.head_dim)
    )


def noisy(model: PreTrainedModel, size: float = 0.05) -> None:
    for weight in model.parameters():
        weight.data += size * weight.data.std() * torch.randn_like(weight)


def low_bits(model: PreTrainedModel) -> None:
    for name, weight in model.named_parameters():
        if name.endswith("_proj.weight"):
            for row in weight.data:
                step = float(row.abs().max()) / 127
                row.copy_(torch.round(row / step) * step)


def shifted(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
    positions = [*range(prompt), *range(prompt + 3, len(ids) + 3)]
    return cached(model, ids, positions).log_softmax(-1)


def padded(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
    pads = [model.config.pad_token_id] * 2
    return cached(model, pads + ids, range(len(ids) + 2))[2:].log_softmax(-1)


def cut(count: Callable[[int], int]) -> Engine:
    def engine(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
        dropped = count(prompt)
        seen = cached(model, ids[dropped:], range(len(ids) - dropped)).log_softmax(-1)
        return torch.cat([torch.zeros(dropped, seen.shape[1]), seen])

    return engine


def no_end(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
    rows = plain(model, ids, prompt)
    end = model.config.eos_token_id
    return rows - torch.log1p(-rows[:, end : end + 1].exp())


def window(model: PreTrainedModel, ids: list[int], prompt: int) -> torch.Tensor:
    return torch.stack(
        [
            cached(model, ids[max(0, t - 2) : t + 1], range(max(0, t - 2), t + 1))[-1]
            for t in range(len(ids))
        ]
    ).log_softmax(-1)


def dropped_out(model: PreTrainedModel) -> None:
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(lambda *each: torch.dropout(each[-1], 0.1, True))


FAULTS: dict[str, tuple[str, Engine]] = {
    "dtype": ("dtype", changed(lambda model: model.to(torch.bfloat16))),
    "temperature": ("temperature", scaled(1 / 0.7)),
    "logit scale": ("temperature", scaled(0.5)),
    "rope": ("rope", changed(other_rope)),
    "quantized base": ("quantized", changed(low_bits)),
    "stale weights": ("weights", changed(noisy)),
    "positions": ("positions", shifted),
    "padding": ("padding", padded),
    "template": ("template", cut(lambda prompt: 1)),
    "context": ("context", cut(lambda prompt: prompt - 2)),
    "eos": ("eos", no_end),
    "kernel (window)": ("", window),
    "dropout": ("", changed(dropped_out)),
}
"""Fault -> the right cause (empty: none is to be named) and the engine."""


def train(task: Path, run: Path, options: Sequence[str]) -> None:
    """Run one step that records tokens with the log-probs of sampler and trainer."""
    words = f"""train --model.path {task}/model --data.train {task}/train.jsonl --reward.use {task}/reward.py:score
        --rollout.batch_size 4 --rollout.n_samples_per_prompt 4 --rollout.max_new_tokens 6 --train.steps 1
        --rollout.compared_share 1 --algo.loss.old_logprobs recompute
        --observers.use token_files --log.samples 16 --checkpoint.at_end false
        --checkpoint.export false --log.progress off --log.summary false --output {run}"""
    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        code = rlhf([*words.split(), *options])
    if code:
        raise RuntimeError(quiet.getvalue())


def plant(run: Path, model: PreTrainedModel, engine: Engine) -> None:
    """Replace the sampler's log-probs by those of an engine."""
    table = parquet.read_table(run / TOKENS).to_pydict()
    for uid in dict.fromkeys(table["uid"]):
        rows = [row for row, each in enumerate(table["uid"]) if each == uid]
        ids = [table["token_id"][row] for row in rows]
        if engine is no_end and model.config.eos_token_id in ids:
            continue  # an engine that bans the end does not sample it; left out below
        prompt = next(at for at, row in enumerate(rows) if table["action"][row])
        with torch.no_grad():
            logprobs = engine(model, ids, prompt)
        for at, row in enumerate(rows):
            if table["action"][row]:
                table["rollout_logprob"][row] = float(logprobs[at - 1, ids[at]])
    if engine is no_end:
        end = model.config.eos_token_id
        ended = {
            uid for uid, token in zip(table["uid"], table["token_id"], strict=True) if token == end
        }
        kept = [row for row, uid in enumerate(table["uid"]) if uid not in ended]
        table = {name: [column[row] for row in kept] for name, column in table.items()}
    parquet.write_table(pa.table(table), run / TOKENS)


def audited(run: Path, other: Path) -> tuple[list[dict[str, object]], float]:
    """Return the verdicts of the command, and the seconds it took."""
    output, started = io.StringIO(), time.perf_counter()
    with contextlib.redirect_stdout(output):
        rlhf(["audit", str(run), "--json", "--other", str(other)])
    return json.loads(output.getvalue()), time.perf_counter() - started


def main() -> None:
    own = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    own.add_argument("--healthy", type=int, default=10)
    count = own.parse_args().healthy
    with tempfile.TemporaryDirectory() as folder:
        base, draw = Path(folder), random.Random(0)
        (base / "task").mkdir()
        write_task(base / "task")
        (base / "task/reward.py").write_text(
            "def score(prompts, responses, **_):\n    return [float(len(each) % 3) for each in responses]\n"
        )
        train(base / "task", base / "run", [])
        model = AutoModelForCausalLM.from_pretrained(
            base / "task/model", dtype=torch.float32
        ).eval()
        stale = copy.deepcopy(model)
        with torch.random.fork_rng():
            torch.manual_seed(7)
            noisy(stale)
        stale.save_pretrained(base / "stale")
        train(base / "task", base / "run_of_top_p", ["--rollout.top_p", "0.9"])
        config = (base / "run_of_top_p/config.toml").read_text()
        if "top_p = 0.9" not in config:
            raise RuntimeError("config.toml has another form of top_p")
        (base / "run_of_top_p/config.toml").write_text(config.replace("top_p = 0.9", "top_p = 1.0"))
        for name, (right, engine) in {**FAULTS, "top-p": ("top_p", None)}.items():
            source = "run" if engine else "run_of_top_p"
            shutil.copytree(base / source, base / "faulty", dirs_exist_ok=True)
            if engine:
                plant(base / "faulty", model, engine)
            verdicts, seconds = audited(base / "faulty", base / "stale")
            sampler, trainer = verdicts
            named = sampler["cause"]
            gap, left = sampler["gap"], sampler["left"]
            ok = (
                named == right and gap > sampler["allowed"] and trainer["gap"] <= trainer["allowed"]
            )
            print(
                f"| {name} | {named or 'none'} | {gap:.2g} | {left:.2g} | {seconds:.1f} | {'yes' if ok else 'NO'} |",
                flush=True,
            )
        blamed = 0
        for number in range(count):
            options = [
                "--seed",
                str(number),
                "--rollout.temperature",
                draw.choice(["0.7", "1.0", "1.3"]),
            ]
            options += ["--rollout.top_p", draw.choice(["1.0", "0.9"])]
            train(base / "task", base / f"healthy{number}", options)
            verdicts, _ = audited(base / f"healthy{number}", base / "stale")
            blamed += any(each["gap"] > each["allowed"] for each in verdicts)
            if blamed:
                print(options, verdicts)
        print(f"{count} healthy runs, {blamed} blamed")


if __name__ == "__main__":
    main()
