"""Seconds of a training step with prompts computed once for their samples, and once for each of them.

    python benchmarks/shared_prompts.py --lengths 32x64 64x256 256x64
    python benchmarks/shared_prompts.py --shape 1.5b --prompts 4 --lengths 256x1024 --micro-batch 20480 --compile

The torch backend alone, on a GPU if there is one: forward and backward pass and optimizer, with random weights, tokens
and advantages. Both ways take turns, and the fastest of the rounds after the first counts. Beside the ratio stands what
the ratio of tokens that the model gets would be, if no group were cut in two.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shapes import SHAPES, TINY, write_model

from rlhf_core.contracts import (
    ComponentRef,
    Normalizers,
    PolicyObjective,
    RoleSpec,
    StepPlan,
    TrainBatch,
    Trajectory,
    TrajectoryColumns,
    Turn,
    Uid,
)
from rlhf_core.plugins import load
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default=TINY, choices=[TINY, *SHAPES])
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument(
        "--lengths", nargs="+", default=["32x64", "64x256", "256x64"], help="prompt x response"
    )
    parser.add_argument("--micro-batch", type=int, default=4096, help="tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(f"{'lengths':>10}{'each':>10}{'once':>10}{'ratio':>8}{'tokens':>8}")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(arguments.shape, model)
        backends = {once: backend_of(model, arguments, once) for once in (False, True)}
        for lengths in arguments.lengths:
            prompt, response = map(int, lengths.split("x"))
            row = measure(backends, arguments, prompt, response)
            rows.append(row)
            print(
                f"{lengths:>10}{row['each_s']:>10.3f}{row['once_s']:>10.3f}{row['ratio']:>8.2f}"
                f"{row['tokens_ratio']:>8.2f}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def backend_of(model: Path, arguments: argparse.Namespace, once: bool) -> TorchBackend:
    """Return the backend with a policy, under AdamW."""
    on_gpu = torch.cuda.is_available()
    backend = TorchBackend(TorchBackendConfig(share_prompts=once, compile=arguments.compile))
    spec = RoleSpec(
        role="policy",
        model_path=str(model),
        dtype="bfloat16" if on_gpu else "float32",
        objective=PolicyObjective(
            loss=ComponentRef(kind="rlhf_policy_losses", name="ppo"), aggregation="token-mean"
        ),
        optimizer=ComponentRef(kind="rlhf_optimizers", name="adam"),
        max_tokens_per_micro_batch=arguments.micro_batch,
    )
    backend.setup(spec, load())
    return backend


def measure(
    backends: dict[bool, TorchBackend], arguments: argparse.Namespace, prompt: int, response: int
) -> dict[str, Any]:
    """Let both backends do the same steps in turns."""
    batch, plan = batch_of(arguments, prompt, response)
    seconds = fastest(backends, batch, plan, arguments.rounds)
    each, once = seconds[False], seconds[True]
    samples = arguments.samples
    return {
        "prompt_tokens": prompt,
        "response_tokens": response,
        "each_s": each,
        "once_s": once,
        "ratio": each / once,
        "tokens_ratio": samples * (prompt + response) / (prompt + samples * response),
    }


def fastest(
    backends: dict[bool, TorchBackend], batch: TrainBatch, plan: StepPlan, rounds: int
) -> dict[bool, float]:
    """Return the seconds of each backend's fastest step, after a first round that does not count."""
    seconds: dict[bool, list[float]] = {once: [] for once in backends}
    for _ in range(rounds + 1):
        for once, backend in backends.items():
            _wait()
            started = time.perf_counter()
            backend.train_step(batch, plan)
            _wait()
            seconds[once].append(time.perf_counter() - started)
    return {once: min(found[1:]) for once, found in seconds.items()}


def batch_of(
    arguments: argparse.Namespace, prompt: int, response: int
) -> tuple[TrainBatch, StepPlan]:
    """Return groups of equal lengths with random tokens and advantages."""
    draw = np.random.default_rng(0)
    mask = np.arange(prompt + response) >= prompt
    rows = []
    for group in range(arguments.prompts):
        start = draw.integers(4, 90, prompt)
        for sample in range(arguments.samples):
            tokens = np.concatenate([start, draw.integers(4, 90, response)])
            rows.append(
                Trajectory(
                    uid=Uid(0, group, sample),
                    token_ids=tokens.astype(np.int32),
                    action_mask=mask,
                    rollout_logprobs=np.zeros(response, np.float32),
                    weight_version=np.zeros(response, np.int32),
                    turns=(Turn(start=prompt, end=prompt + response),),
                    reward=1.0,
                )
            )
    size = len(rows) * response
    advantages = draw.normal(size=size).astype(np.float32)
    batch = TrainBatch(
        trajectories=TrajectoryColumns.from_trajectories(rows), columns={"advantages": advantages}
    )
    totals = Normalizers(num_actions=size, num_sequences=len(rows), max_actions=response)
    return batch, StepPlan(normalizers=totals, on_policy=True)


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
