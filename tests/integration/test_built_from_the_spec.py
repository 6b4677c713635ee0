"""What a runtime's own processes build from names and plain values plays, rewards and learns as the loop itself."""

import json
from dataclasses import replace

import pytest

from rlhf_plugin_local.runtime import LocalRuntime
from rlhf_trainer.learning.process import open_learner
from rlhf_trainer.rollouts.worker import GroupRunner, open_rewards, open_rollouts

RUNS = {
    "plain": [],
    "critic, KL, several updates": [
        *("--estimator", "gae", "--algo.kl.coef", "0.05", "--algo.kl.mode", "reward"),
        *("--train.inner_epochs", "2", "--rollout.filters", "zero_variance"),
    ],
    "a prepared step, a correction": ["--loss", "gspo", "--algo.correction.kind", "tis"],
    "a greedy episode": ["--estimator", "remax"],
    "shapers": ["--reward.shapers", "stop_properly", "normalize"],
    "responses to imitate": ["--algo.terms.use", "sft", "--supervised.data", "good.jsonl"],
    "turns of an environment": [
        *("--executor", "multi_turn", "--env", "echo_after_hint", "--estimator", "gigpo"),
        *("--rollout.max_length", "64"),
    ],
    "ahead": ["--rollout.max_staleness", "1", "--algo.correction.kind", "tis"],
    "held-out prompts": ["--eval.fraction", "0.3", "--eval.at_start", "--steps", "1"],
}


class Groups:
    """Plays as another process would, which gets everything by the wire."""

    def __init__(self, spec, plugins, engine):
        rollouts = spec.rollouts
        self.runner = GroupRunner(open_rollouts(rollouts, plugins), open_rewards(rollouts, plugins))
        self.engine = engine

    async def play(self, task, terms):
        return await self.runner.play(task, terms, self.engine)


@pytest.fixture
def by_spec(monkeypatch):
    """From now on runs learn, play and reward by what their RuntimeSpec says."""
    used = []

    def switch():
        original_start, original_close = LocalRuntime.start, LocalRuntime.close

        async def start(runtime, spec, plugins):
            placement = await original_start(runtime, spec, plugins)
            config = json.loads(json.dumps(spec.config))
            groups = Groups(spec, plugins, placement.engine)
            await groups.runner.start()
            used.append(groups)
            learner = open_learner(config, placement.roles, plugins)
            return replace(placement, learner=learner, groups=groups)

        async def close(runtime):
            for groups in used:
                await groups.runner.close()
            await original_close(runtime)

        monkeypatch.setattr(LocalRuntime, "start", start)
        monkeypatch.setattr(LocalRuntime, "close", close)
        return used

    return switch


@pytest.mark.slow
@pytest.mark.parametrize("flags", RUNS.values(), ids=RUNS)
def test_a_run_by_its_spec_is_the_run_itself(train, workspace, by_spec, flags):
    rows = [{"prompt": f"{n:03d}=", "response": f"{n:03d}"} for n in range(0, 999, 53)]
    (workspace / "good.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    if "--env" not in flags:
        flags = [*flags, "--reward", "vary.py:vary"]

    here = train("here", *flags)
    used = by_spec()
    there = train("there", *flags)

    assert len(used) == 1
    assert numbers(there) == numbers(here)
    assert numbers(here)


def numbers(lines):
    return [line.get("metrics") or line["eval"] for line in lines]
