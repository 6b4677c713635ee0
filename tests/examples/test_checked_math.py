"""The recipe ``checked_math``: two agents of openai-agents, where that package is installed (``make clients``)."""

import asyncio
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "checked_math"


@pytest.fixture
def recipe():
    pytest.importorskip("agents")
    spec = importlib.util.spec_from_file_location("checked_math_agent", EXAMPLE / "agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("so \\boxed{1,200}.", True),
        ("\\boxed{3} no, \\boxed{ 1200.0 }", True),
        ("\\boxed{\\$1200}", True),
        ("\\boxed{1200} no, \\boxed{3}", False),
        ("1200", False),
        ("\\boxed{twelve}", False),
    ],
)
def test_the_last_boxed_number_counts(recipe, text, right):
    assert recipe.is_right(text, "1200") is right


@pytest.mark.parametrize(
    ("answers", "reward", "metrics"),
    [
        (("\\boxed{5}", "\\boxed{4}"), 1.0, (0.0, 1.0, 0.0)),
        (("\\boxed{4}", "\\boxed{5}"), 0.0, (1.0, 0.0, 1.0)),
        (("\\boxed{4}", "\\boxed{4}"), 1.0, (1.0, 0.0, 0.0)),
    ],
)
def test_the_checkers_answer_is_rewarded_and_reads_the_solution(
    recipe, monkeypatch, answers, reward, metrics
):
    read = []

    async def run(agent, content):
        read.append((agent.name, content))
        return SimpleNamespace(final_output=answers[len(read) - 1])

    monkeypatch.setattr(recipe.Runner, "run", run)
    context = SimpleNamespace(
        base_url="http://127.0.0.1:1/v1",
        api_key="k",
        model="policy",
        prompt="2 + 2?",
        row={"answer": "4"},
    )

    outcome = asyncio.run(recipe.agent(context))

    assert outcome["reward"] == reward
    assert tuple(outcome["metrics"].values()) == metrics
    assert [name for name, _ in read] == ["solver", "checker"]
    assert answers[0] in read[1][1]
