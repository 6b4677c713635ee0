"""A training step on released environments of each ecosystem.

They play in this process where the ecosystem is installed beside the tests, else in an interpreter of their own:
``RLHF_BRIDGES`` names a folder with a virtual environment for each, as docs/bridges.md makes them. Where neither has an
ecosystem, its test is skipped.
"""

import importlib.util
import json
import os
from pathlib import Path

import pytest

from rlhf_cli.main import main
from rlhf_core.testing.tiny import write_tiny_model

pytestmark = [pytest.mark.matrix, pytest.mark.usefixtures("no_process_left")]

GENERATORS = (
    "basic_arithmetic", "chain_sum", "leg_counting", "spell_backward", "letter_counting", "number_sorting",
    "base_conversion", "caesar_cipher", "count_bits", "gcd", "lcm", "maze", "n_queens", "palindrome_generation",
    "prime_factorization", "fraction_simplification", "simple_equations", "sudoku", "tower_of_hanoi", "word_sorting",
)  # fmt: skip

V0 = "verifiers.legacy.envs.integrations.reasoninggym_env:ReasoningGymEnv"
RUNS = {
    "gymnasium": {
        "lake": ("gymnasium", {"id": "FrozenLake-v1", "max_steps": 3}),
        "cliff": ("gymnasium", {"id": "CliffWalking-v1", "max_steps": 3}),
        "blackjack": ("gymnasium", {"id": "Blackjack-v1", "max_steps": 3}),
    },
    "reasoning-gym": {name: ("reasoning_gym", {"dataset": name}) for name in GENERATORS},
    "openenv": {
        "maze": (
            "openenv",
            {"app": "maze_env.server.app:app", "max_turns": 3, "step_errors": "show"},
        ),
        "connect4": ("openenv", {"app": "connect4_env.server.app:app", "max_turns": 3}),
        "legs": ("openenv", {"app": "reasoning_gym_env.server.app:app", "show": "question"}),
        "echo": ("openenv", {"app": "word_env.server.app:app", "max_turns": 2}),
    },
    "textarena": {
        "guess": ("textarena", {"game": "GuessTheNumber-v0", "max_turns": 3}),
        "mastermind": ("textarena", {"game": "Mastermind-v0", "max_turns": 3}),
        "towers": ("textarena", {"game": "TowerOfHanoi-v0", "max_turns": 3}),
    },
    "verifiers-0.3": {
        "sums": ("verifiers_v0", {"id": V0, "kwargs.gym": "chain_sum"}),
        "legs": ("verifiers_v0", {"id": V0, "kwargs.gym": "leg_counting"}),
    },
}
"""Virtual environment -> environments of one run by label: the component, and its options."""


def interpreter(name):
    """The virtual environment with the ecosystem; None: this process has it."""
    if importlib.util.find_spec(name.replace("-", "_").partition(".")[0]):
        return None
    folder = os.environ.get("RLHF_BRIDGES")
    if folder is None or not (Path(folder) / name / "bin" / "python").exists():
        pytest.skip(f"no virtual environment {name} in RLHF_BRIDGES; docs/bridges.md makes it")
    return str((Path(folder) / name).absolute())


def train(folder, environments):
    """Metrics of one step. ``environments``: label -> interpreter, component and options."""
    write_tiny_model(folder / "model", hidden_size=16, num_layers=1, num_heads=2)
    words = [
        "train",
        "--model",
        str(folder / "model"),
        "--output",
        str(folder / "run"),
        "--steps",
        "1",
    ]
    words += ["--executor", "multi_turn", "--rollout.batch_size", str(2 * len(environments))]
    words += ["--rollout.n_samples_per_prompt", "2", "--rollout.max_new_tokens", "8"]
    words += ["--rollout.concurrency", "2"]
    words += ["--rollout.max_length", "4096", "--log.progress", "off", "--log.tensorboard", "false"]
    words += [
        "--env",
        *(f"{label}={component}" for label, (_, component, _) in environments.items()),
    ]
    for label, (python, _, options) in environments.items():
        if python is not None:
            words += [f"--env.{label}.isolation", "venv", f"--env.{label}.python", python]
        for key, value in options.items():
            words += [f"--env.{label}.{key}", str(value)]
    assert main(words) == 0
    (line,) = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    return line["metrics"]


@pytest.mark.parametrize("name", RUNS)
def test_a_step_on_released_environments(tmp_path, name):
    python = interpreter(name)
    environments = {label: (python, *chosen) for label, chosen in RUNS[name].items()}

    metrics = train(tmp_path, environments)

    assert {f"rollout/{label}/reward" for label in environments} <= set(metrics)
