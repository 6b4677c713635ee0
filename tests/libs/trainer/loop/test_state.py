"""What the loop remembers between steps survives JSON, also that of another version."""

import json
from dataclasses import fields

import pytest

from rlhf_trainer.loop.state import Best, LoopState, adopt_options, initial_state

FULL = LoopState(
    step=3,
    prompts_taken=7,
    num_prompts=9,
    num_supervised=6,
    sampler={"rates": {"4": 0.5}},
    source={"starts": [0, 5]},
    last_epochs={4: 2},
    in_flight=[(0, 5), (1, 2)],
    lengths={"0": 12},
    version=2,
    empty_steps=1,
    kl_coef=0.1,
    entropy_coef=0.2,
    entropy=1.5,
    supervised_taken=4,
    skipped_updates={"policy": 1},
    bests=[Best(metric="eval/reward", mode="max", data="ab", step=2, value=-0.5)],
    seconds=1.25,
    shapers=[{"mean": 1.0}],
    lr_factors={"policy": 0.5},
    observers={"mine:watcher": {"seen": 2}},
    ended_by="mine:watcher",
    end="ended by watcher (mine 1): enough",
)


def test_everything_comes_back_from_a_checkpoint():
    found = LoopState.from_json(json.loads(json.dumps(FULL.to_json())))

    assert found == FULL
    defaults = LoopState()
    same = [f.name for f in fields(FULL) if getattr(FULL, f.name) == getattr(defaults, f.name)]
    assert same == []  # each field was put to the test


def test_what_a_checkpoint_has_beside_the_state_is_passed_over():
    values = FULL.to_json() | {"config": {}, "records": {}, "made_with": {}}

    assert LoopState.from_json(values) == FULL


def test_the_state_of_another_run_shares_no_list_or_table():
    one, other = LoopState(), LoopState()
    one.in_flight.append((0, 0))
    one.skipped_updates["policy"] = 1
    one.shapers.append({})
    one.lengths["0"] = 1

    assert other == LoopState()


def test_a_run_starts_with_the_coefficients_of_its_options(resolved):
    run = resolved("--algo.kl.coef", "0.25", "--algo.loss.entropy_coef", "0.125").run

    assert initial_state(run) == LoopState(kl_coef=0.25, entropy_coef=0.125)


@pytest.mark.parametrize("changed", [{"algo.kl.coef", "algo.loss.entropy_coef"}, set()])
def test_a_resumed_run_has_the_coefficients_of_its_options_if_nothing_adapts_them(
    resolved, changed
):
    run = resolved("--algo.kl.coef", "0.25", "--algo.loss.entropy_coef", "0.125").run
    state = LoopState()

    adopt_options(state, run, changed)

    assert (state.kl_coef, state.entropy_coef) == (0.25, 0.125)


@pytest.mark.parametrize(
    ("changed", "found"),
    [({"algo.kl.coef"}, (0.25, 0.75)), ({"algo.loss.entropy_coef"}, (0.75, 0.125))],
)
def test_an_adapted_coefficient_goes_on_unless_its_option_has_changed(resolved, changed, found):
    adapted = ("--algo.kl.target", "0.1", "--algo.loss.entropy_target", "2")
    run = resolved("--algo.kl.coef", "0.25", "--algo.loss.entropy_coef", "0.125", *adapted).run
    state = LoopState(kl_coef=0.75, entropy_coef=0.75)

    adopt_options(state, run, changed)

    assert (state.kl_coef, state.entropy_coef) == found
