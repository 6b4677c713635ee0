"""Gated linear attention by the kernel of flash-linear-attention beside plain torch: numbers, seconds, memory.

    python benchmarks/linear_attention.py --shape qwen3.5-0.8b --compile

The torch backend alone with random weights, on sequences of different lengths that lie packed in micro-batches.
Compared are log-probs of the kernel with plain torch's, and of packed sequences with those of each alone, both ways;
beside them stands what bfloat16 itself costs: plain torch in bfloat16 and in float32. Then both train the same steps in
turns. Where no kernel is taken the script says why, and measures plain torch alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from shapes import SHAPES, write_model
from shared_prompts import fastest

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
from rlhf_torch.recurrent import sequences
from rlhf_torch.recurrent.kernels import problem_of

KERNEL, PLAIN = "flash-linear-attention", "plain torch"
PROMPT = 64
HEAD_SIZES = (128, 128)
"""Of keys and values, in the shapes of ``shapes.py``."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--shape", default="qwen3.5-0.8b", choices=list(SHAPES))
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--mean", type=int, default=512, help="tokens of a sequence, about")
    parser.add_argument("--micro-batch", type=int, default=8192, help="tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--only-steps", action="store_true", help="compare no log-probs")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    ways = [KERNEL, PLAIN] if has_kernel() else [PLAIN]
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(arguments.shape, model)
        found = {} if arguments.only_steps else compared(arguments, model, ways)
        found |= trained(arguments, model, ways)
    for name, value in found.items():
        print(f"{name:64} {value:.4g}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


def has_kernel() -> bool:
    """Say what is installed, and whether the kernel passes the comparison that a run makes first."""
    if not torch.cuda.is_available():
        print("no GPU, so no kernel")
        return False
    from transformers.models.qwen3_5 import modeling_qwen3_5 as family

    try:
        from fla import __version__
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    except Exception as error:  # a package for other versions may raise anything
        print(f"flash-linear-attention cannot be imported: {error}")
        return False
    plain = getattr(family, sequences.CHUNKED)
    problem = problem_of(chunk_gated_delta_rule, plain, torch.device("cuda"), *HEAD_SIZES)
    print(
        f"flash-linear-attention {__version__}, {torch.cuda.get_device_name()}: {problem or 'no problem'}"
    )
    return problem is None


@contextmanager
def computed(way: str) -> Iterator[None]:
    """Have the delta rule computed by plain torch, or as a run finds it."""
    taken = sequences.packed_kernel
    if way == PLAIN:
        sequences.packed_kernel = lambda *_: None
    try:
        yield
    finally:
        sequences.packed_kernel = taken


def compared(arguments: argparse.Namespace, model: Path, ways: list[str]) -> dict[str, float]:
    """Return differences of log-probs, in nats."""
    batch = batch_of(arguments).trajectories
    longest = int(np.diff(batch.token_offsets).max())
    numbers: dict[tuple[str, str, str], np.ndarray] = {}
    for dtype in ("bfloat16", "float32"):
        for way in ways if dtype == "bfloat16" else [PLAIN]:
            for how, size in (("packed", arguments.micro_batch), ("alone", longest)):
                with computed(way), torch.no_grad():
                    backend = backend_of(model, arguments, size, dtype)
                    alone = [batch.select(np.array([row])) for row in range(len(batch))]
                    parts = alone if how == "alone" else [batch]
                    numbers[way, how, dtype] = np.concatenate(
                        [backend.logprobs(part) for part in parts]
                    )
                    free(backend)
    pairs = [((PLAIN, "packed", "bfloat16"), (PLAIN, "packed", "float32"))]
    pairs += [((way, "packed", "bfloat16"), (way, "alone", "bfloat16")) for way in ways]
    pairs += [((PLAIN, "packed", "float32"), (PLAIN, "alone", "float32"))]
    if KERNEL in ways:
        pairs += [
            ((KERNEL, "packed", "bfloat16"), (PLAIN, "packed", kind))
            for kind in ("bfloat16", "float32")
        ]
    found = {}
    for one, other in pairs:
        gaps = np.abs(numbers[one] - numbers[other])
        name = f"{' '.join(one)} - {' '.join(other)}"
        found |= {f"{name}, mean": float(gaps.mean()), f"{name}, most": float(gaps.max())}
    return found


def trained(arguments: argparse.Namespace, model: Path, ways: list[str]) -> dict[str, float]:
    """Return norms of the first gradients, seconds of a step, and what torch allocated at the most, in GiB."""
    batch = batch_of(arguments)
    size = len(batch.columns["advantages"])
    totals = Normalizers(
        num_actions=size,
        num_sequences=arguments.rows,
        max_actions=int(np.diff(batch.trajectories.action_offsets).max()),
    )
    plan = StepPlan(normalizers=totals, on_policy=True)
    found: dict[str, float] = {}
    for way in ways:
        with computed(way):
            backend = backend_of(model, arguments, arguments.micro_batch, "bfloat16")
            first = backend.train_step(batch, plan).metrics
            found[f"{way}, norm of the gradient"] = first["policy/grad_norm"].value()
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            seconds = fastest({True: backend}, batch, plan, arguments.rounds)[True]
            found[f"{way}, seconds of a step"] = seconds
            if torch.cuda.is_available():
                found[f"{way}, GiB"] = torch.cuda.max_memory_allocated() / 2**30
            free(backend)
    return found


def backend_of(
    model: Path, arguments: argparse.Namespace, micro_batch: int, dtype: str
) -> TorchBackend:
    backend = TorchBackend(
        TorchBackendConfig(compute_dtype=dtype, compile=arguments.compile and dtype == "bfloat16")
    )
    spec = RoleSpec(
        role="policy",
        model_path=str(model),
        dtype="bfloat16" if torch.cuda.is_available() else "float32",
        objective=PolicyObjective(
            loss=ComponentRef(kind="rlhf_policy_losses", name="ppo"), aggregation="token-mean"
        ),
        optimizer=ComponentRef(kind="rlhf_optimizers", name="adam"),
        max_tokens_per_micro_batch=micro_batch,
    )
    backend.setup(spec, load())
    return backend


def free(backend: Any) -> None:
    backend.close()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def batch_of(arguments: argparse.Namespace) -> TrainBatch:
    """Return rows of different lengths with random tokens and advantages."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(arguments.rows):
        length = int(np.clip(draw.lognormal(np.log(arguments.mean), 0.5), 8, 4 * arguments.mean))
        tokens = draw.integers(4, 90, PROMPT + length).astype(np.int32)
        rows.append(
            Trajectory(
                uid=Uid(0, number, 0),
                token_ids=tokens,
                action_mask=np.arange(len(tokens)) >= PROMPT,
                rollout_logprobs=np.zeros(length, np.float32),
                weight_version=np.zeros(length, np.int32),
                turns=(Turn(start=PROMPT, end=len(tokens)),),
                reward=1.0,
            )
        )
    columns = TrajectoryColumns.from_trajectories(rows)
    advantages = draw.normal(size=int(columns.action_offsets[-1])).astype(np.float32)
    return TrainBatch(trajectories=columns, columns={"advantages": advantages})


if __name__ == "__main__":
    main()
