"""Kill runs whose episodes have several turns or several segments, resume them, and compare with runs left alone.

The environment fails in some episodes, which are left out, and gives rewards of turns and of episodes by name.
"""

import json

import pytest

from rlhf_testing.tiny import write_tiny_model
from rlhf_trainer.durable.records import replay

from .forked_runs import QUIET, check_that_killed_runs_resume, records

ENVIRONMENT = """
import random
from rlhf_core.contracts import Observation, StepResult


class Moody:
    def __init__(self, config):
        self.tokens = 0

    async def reset(self, task, seed):
        self.draw = random.Random(seed)
        self.digit = self.draw.randrange(3)
        return Observation(text=f"{self.digit}?")

    async def step(self, action):
        self.tokens += len(action.token_ids)
        if sum(action.token_ids) % 11 == 0:
            raise OSError("moody")
        rewards = {"low": -0.1 * (action.token_ids[0] > 50), "digit": float(str(self.digit) in action.text)}
        return StepResult(observation=Observation(text="again:"), rewards=rewards, done=action.turn == 2)

    async def episode_rewards(self):
        return {"brief": 1.0 / self.tokens}

    async def close(self):
        pass
"""

AGENT = """
from dataclasses import replace
from rlhf_core.contracts import GenerationRequest
from rlhf_episodes import EpisodeGraph


class Forgetful:
    \"\"\"Asks twice, of which the second time without its first answer, and once more about both.\"\"\"

    def __init__(self, config):
        pass

    async def run(self, task, samples, context):
        rows = []
        for sample in samples:
            graph = EpisodeGraph(task.uid._replace(sample=sample))
            head = [*context.renderer.encode("0?")]
            first = await self.ask(graph, head, context, 0)
            second = await self.ask(graph, [*head, 5, 6], context, 1)
            third = await self.ask(graph, [*first.path_ids.tolist(), 7], context, 2)
            graph.reward(second, float(second.completion.token_ids[0] % 3))
            rows += graph.trajectories(metrics=graph.metrics(), rewards={"n": len(third.path_ids) / 32})
        return rows

    async def ask(self, graph, prompt, context, turn):
        sample = graph.uid.sample
        (completion,) = await context.engine.generate(
            GenerationRequest(
                uid=graph.uid,
                turn=turn,
                prompt_ids=tuple(prompt),
                seeds=(context.seed(sample, turn),),
                sampling=replace(context.sampling, max_new_tokens=4),
            )
        )
        return graph.add(prompt, completion)
"""

FLAGS = [
    *("train", "--model", "model", "--train.steps", "4", "--checkpoint.every", "2"),
    *(
        "--rollout.batch_size",
        "4",
        "--rollout.n_samples_per_prompt",
        "4",
        "--train.batch_size",
        "8",
    ),
    *(
        "--rollout.max_new_tokens",
        "4",
        "--rollout.max_length",
        "48",
        "--runtime.local.threads",
        "1",
    ),
    *(
        "--algo.loss.aggregation",
        "seq-mean-token-mean",
        "--estimator",
        "grpo",
        "--seed",
        "3",
        *QUIET,
    ),
]


@pytest.fixture
def folder(tmp_path):
    import transformers  # noqa: F401  # so that forks start at once

    write_tiny_model(tmp_path / "model", hidden_size=16, num_layers=1, num_heads=2)
    (tmp_path / "moody.py").write_text(ENVIRONMENT)
    (tmp_path / "agent.py").write_text(AGENT)
    rows = [{"prompt": f"{n}?"} for n in range(20)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    (tmp_path / "reward.py").write_text("def score(response):\n    return len(response) / 16\n")
    return tmp_path


@pytest.mark.slow
def test_multi_turn_with_an_environment_that_fails_resumes_to_the_same_numbers(folder):
    environment = ("--executor", "multi_turn", "--env", "moody.py:Moody")
    policy = ("--rollout.multi_turn.on_error", "drop", "--rollout.multi_turn.max_turns", "3")

    check_that_killed_runs_resume(folder, [*FLAGS, *environment, *policy], "train", [3])

    steps = records(folder / "whole", "metrics")
    lost = sum(step.get("filter/dropped_episodes/environment_failed", 0) for step in steps)
    assert 0 < lost < 64
    balance = replay(folder / "train3" / "ledger.jsonl")
    assert balance.unsettled() == []
    assert balance.trained.total() + balance.dropped.total() == 64
    assert {"reward/brief", "rollout/env/reward/low", "rollout/end/finished"} <= steps[0].keys()


@pytest.mark.slow
def test_episodes_of_two_segments_resume_to_the_same_numbers(folder):
    """Each has a reward of its own, and one that counts the length of the segment that ended last."""
    agent = ("--executor", "agent.py:Forgetful", "--data", "train.jsonl")
    reward = ("--reward", "reward.py:score", "--data.max_prompt_tokens", "8")

    check_that_killed_runs_resume(folder, [*FLAGS, *agent, *reward], "train", [3])

    for step in records(folder / "whole", "metrics"):
        assert (step["rollout/samples"], step["rollout/rows"]) == (16, 32)
        assert step["rollout/graph/segments"] == 2
        assert step["rollout/graph/forks"] == 1
