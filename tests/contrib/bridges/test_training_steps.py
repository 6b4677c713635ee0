"""A training step on released environments of each ecosystem.

They play in this process where the ecosystem is installed beside the tests, else in an interpreter of their own:
``RLHF_BRIDGES`` names a folder with a virtual environment for each, as docs/bridges.md makes them. Where neither has an
ecosystem, its test is skipped.
"""

import importlib.util
import json

import pytest
from tests.cases import one_in
from tests.contrib.bridges.interpreters import own_interpreter, versions

from rlhf_cli.main import main
from rlhf_testing.tiny import write_tiny_model

pytestmark = pytest.mark.usefixtures("no_process_left")

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
        "claims": ("verifiers_v0", {"id": "sophistry_bench_sprint"}),
        "poems": ("verifiers_v0", {"id": "stardata.envs.constraint_gym:load_environment"}),
    },
    "verifiers-0.4": {
        "hangman": ("verifiers", {"id": "textarena", "kwargs.game": "Hangman-v0"}),
        "ladder": ("verifiers", {"id": "textarena", "kwargs.game": "WordLadder-v0"}),
        "search": ("verifiers", {"id": "textarena", "kwargs.game": "WordSearch-v0"}),
    },
}
"""Virtual environment -> environments of one run by label: the component, and its options."""


def interpreter(name):
    """The virtual environment with the ecosystem; None: this process has it."""
    if importlib.util.find_spec(name.replace("-", "_").partition(".")[0]):
        return None
    return own_interpreter(name)


def train(folder, environments, shares=None):
    """Metrics of one step. ``environments``: label -> interpreter, component and options."""
    part = {label: f"={share}" for label, share in (shares or {}).items()}
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
    words += ["--eval.environment_split", "none"]
    words += [
        "--env",
        *(
            f"{label}={component}{part.get(label, '')}"
            for label, (_, component, _) in environments.items()
        ),
    ]
    for label, (python, _, options) in environments.items():
        if python is not None:
            words += [f"--env.{label}.isolation", "venv", f"--env.{label}.python", python]
        for key, value in options.items():
            words += [f"--env.{label}.{key}", str(value)]
    assert main(words) == 0
    (line,) = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    return line["metrics"]


@pytest.mark.parametrize("name", one_in(len(RUNS), RUNS))  # the first ecosystem is installed in CI
def test_a_step_on_released_environments(tmp_path, name):
    python = interpreter(name)
    environments = {label: (python, *chosen) for label, chosen in RUNS[name].items()}

    metrics = train(tmp_path, environments)

    assert {f"rollout/{label}/reward" for label in environments} <= set(metrics)


@pytest.mark.slow
def test_two_versions_of_verifiers_train_in_one_run(tmp_path):
    """Neither interpreter could hold what the other needs: verifiers 0.4 pins what 0.3 excludes."""
    old, new = own_interpreter("verifiers-0.3"), own_interpreter("verifiers-0.4")
    held = {python: versions(python, "verifiers", "mcp", "openai") for python in (old, new)}

    metrics = train(
        tmp_path,
        {
            "old": (old, "verifiers_v0", {"id": V0, "kwargs.gym": "chain_sum"}),
            "new": (new, "verifiers", {"id": "textarena", "kwargs.game": "Hangman-v0"}),
        },
        shares={"old": 0.25, "new": 0.75},
    )

    assert held[old]["verifiers"].startswith("0.3.")
    assert held[new]["verifiers"].startswith("0.4.")
    for name in ("mcp", "openai"):
        assert held[old][name].partition(".")[0] != held[new][name].partition(".")[0], held
    # Four tasks, shared 1 : 3, with two episodes each; a game has several turns, a question one.
    assert metrics["rollout/old/turns"] == 1.0
    assert metrics["rollout/new/turns"] > 1.0
    expected = (metrics["rollout/old/turns"] + 3 * metrics["rollout/new/turns"]) / 4
    assert metrics["rollout/turns"] == pytest.approx(expected)


@pytest.mark.slow
def test_environments_under_three_versions_of_python_train_in_one_run(tmp_path):
    others = [own_interpreter("python-3.12"), own_interpreter("python-3.13")]
    environments = {
        f"python_{number}": (python, "countdown", {})
        for number, python in enumerate([None, *others])
    }

    metrics = train(tmp_path, environments)

    for label in environments:
        assert metrics[f"rollout/{label}/end/finished"] == 1.0
