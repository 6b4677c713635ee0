"""Any estimator x any loss x any correction: it takes a finite step, or is refused before a model loads, with a reason.

A step goes through the real backend on a tiny model: scoring passes, estimator, prepared columns, one update. Rollouts
are sampled once, with rewards that differ.
"""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest

from rlhf_cli.train import DEFAULTS
from rlhf_config import Layer, parse_flags, read_toml, resolve
from rlhf_core import ConfigError
from rlhf_core import plugins as plugin_loader
from rlhf_core.contracts import Stop, Trajectory, TrajectoryColumns, Turn, Uid
from rlhf_core.contracts.backend import StepPlan
from rlhf_plugin_local.runtime import LocalRole
from rlhf_testing.tiny import write_tiny_model
from rlhf_trainer.learning.advantages import advantages
from rlhf_trainer.learning.demands import demands_of
from rlhf_trainer.learning.minibatches import normalizers_of, prepare, step_data
from rlhf_trainer.learning.model_outputs import ask_models
from rlhf_trainer.learning.roles import CRITIC, POLICY, runtime_spec

pytestmark = pytest.mark.slow

INSTALLED = plugin_loader.load()


def names(hook):
    return [entry.name for entry in INSTALLED.registries[hook]]


ESTIMATORS = names("rlhf_advantage_estimators")
LOSSES = names("rlhf_policy_losses")
CORRECTIONS = [None, *names("rlhf_is_corrections")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    return write_tiny_model(folder, hidden_size=16, num_layers=1, num_heads=2)


def rollouts():
    """Two prompts with four samples each, one of them with two turns; some are truncated."""
    rng = np.random.default_rng(0)
    rows = []
    for prompt in range(2):
        for sample in range(4):
            lengths = [int(rng.integers(1, 6)), int(rng.integers(1, 4))][: 1 + (sample == 3)]
            mask, turns = [False] * 3, []
            for length in lengths:
                turns.append((len(mask), len(mask) + length))
                mask += [True] * length + [False] * 2
            mask = np.array(mask[: turns[-1][1]])
            stop = Stop.LENGTH if sample == 2 else Stop.EOS
            rows.append(
                Trajectory(
                    uid=Uid(0, prompt, sample),
                    token_ids=rng.integers(4, 90, len(mask)).astype(np.int32),
                    action_mask=mask,
                    rollout_logprobs=rng.normal(-4.6, 0.1, mask.sum()).astype(np.float32),
                    weight_version=np.zeros(mask.sum(), np.int32),
                    turns=tuple(Turn(start=a, end=b, stop=stop) for a, b in turns),
                    reward=float(sample % 3 + prompt / 2),
                    rewards={"score": float(sample % 3 + prompt / 2)},
                    metrics={"greedy_reward": 1.0},
                )
            )
    return TrajectoryColumns.from_trajectories(rows)


def resolved(model, estimator, loss, correction):
    """The run's configuration; what some component may need stands in the file, where it may wait."""
    options = {
        "model": {"path": str(model)},
        "data": {"train": ["d.jsonl"], "max_prompt_tokens": 8},
        "reward": {"use": ["exact_match"]},
        "rollout": {"batch_size": 2, "n_samples_per_prompt": 4, "max_new_tokens": 8},
        "algo": {
            "teacher": {"path": str(model), "top_k": 4},
            "advantage": {"estimator": estimator},
        },
        "supervised": {"data": ["s.jsonl"]},
    }
    flags = ["--loss", loss]
    if correction is not None:
        flags += ["--algo.correction.kind", correction]
    layers = [read_toml(DEFAULTS, defaults=True), Layer.of(options, "run.toml")]
    return resolve([*layers, parse_flags(flags)], INSTALLED)


async def one_step(run, roles, batch):
    """What ``RLTrainer.step`` does after sampling, for one update."""
    demands = demands_of(run)
    outputs = await ask_models(batch, roles, demands)
    estimator = run.one("algo.advantage.estimator")
    estimates, _ = advantages(
        batch,
        outputs,
        estimator.registered.build(estimator.options),
        None,
        reward_weights={"score": 1.0},
        with_observations=demands.observations,
    )
    data = step_data(batch, outputs.columns | estimates, outputs.teacher_top)
    if demands.prepares_step:
        loss = run.one("algo.loss.policy")
        columns = prepare(loss.registered.build(loss.options), data, seed=0)
        data = replace(data, columns={**data.columns, **columns})
    plan = StepPlan(normalizers=normalizers_of(batch.num_actions, 8), on_policy=True)
    if demands.critic:
        await roles[CRITIC].train_step(data, plan)
    return await roles[POLICY].train_step(data, plan)


class Roles:
    """Builds backends; those that are not trained, and the critic, are built once for all combinations."""

    def __init__(self):
        self._kept = {}

    def of(self, run):
        spec = runtime_spec(run, demands_of(run), total_steps=1, eos_token_ids=(2,))
        roles = {}
        for name, role in spec.roles.items():
            if name == POLICY or repr(role) not in self._kept:
                backend = INSTALLED.build(spec.backend)
                backend.setup(role, INSTALLED)
                self._kept[repr(role)] = LocalRole(backend)
            roles[name] = self._kept[repr(role)]
        return roles


@pytest.fixture(scope="module")
def roles():
    return Roles()


PAIRS = [
    # A sixth of the pairs, in which each estimator and each loss comes with a sixth of the others, stands for the rest.
    pytest.param(estimator, loss, marks=[] if (row + column) % 6 == 0 else pytest.mark.matrix)
    for row, estimator in enumerate(ESTIMATORS)
    for column, loss in enumerate(LOSSES)
]


@pytest.mark.parametrize(("estimator", "loss"), PAIRS)
def test_every_correction_takes_a_finite_step_or_is_refused_with_a_reason(
    model, roles, estimator, loss
):
    batch = rollouts()
    outcomes = {}
    for correction in CORRECTIONS:
        try:
            run = resolved(model, estimator, loss, correction)
        except ConfigError as refusal:
            reason = str(refusal)
            assert loss in reason or (correction or "") in reason or estimator in reason
            outcomes[correction] = "refused"
            continue
        outcome = asyncio.run(one_step(run, roles.of(run), batch))
        values = {name: metric.value() for name, metric in outcome.metrics.items()}
        unusual = {name: x for name, x in values.items() if x is not None and not math.isfinite(x)}
        assert unusual == {}, (correction, unusual)
        assert values["train/skipped_updates"] == 0.0, correction
        outcomes[correction] = "stepped"
    print(estimator, loss, outcomes)


def test_most_of_the_product_is_accepted(model):
    """Refusals are for combinations without a meaning; they must not become the rule."""
    accepted = refused = 0
    for loss in LOSSES:
        for correction in CORRECTIONS:
            try:
                resolved(model, "reinforce_baseline", loss, correction)
                accepted += 1
            except ConfigError:
                refused += 1

    assert accepted > 2 * refused
