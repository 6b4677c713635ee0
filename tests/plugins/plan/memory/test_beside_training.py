"""Plans of runs whose embedded engine generates beside training on one GPU."""

import pytest

from rlhf_plugin_local.engine.beside.decision import LARGEST_THAT_GAINS
from rlhf_plugin_plan.machine import assumptions as assumed

AHEAD = ["--engine", "embedded", "--rollout.max_staleness", "1", "--algo.correction.kind", "tis"]
ALWAYS = ["--engine.embedded.overlap", "always"]
WEIGHTS, JOINED = 1_543_714_304, 28 * 1536 * (1536 + 2 * 256 + 2 * 8960)


def engine_parts(result):
    parts = result["gpus"][0]["processes"][0]["parts_gib"]
    return {name: size for name, size in parts.items() if name.startswith("engine: ")}


def test_the_plan_decides_as_the_engine_does():
    assert assumed.EMBEDDED_BESIDE_TRAINING == LARGEST_THAT_GAINS


def test_a_copy_of_the_weights_comes_on_top_and_the_seconds_stay(run):
    _, shared = run(*AHEAD, "--engine.embedded.overlap", "never")
    _, beside = run(*AHEAD, *ALWAYS)

    before, after = engine_parts(shared), engine_parts(beside)
    more = {name: size for name, size in after.items() if name not in before}
    assert more["engine: copy of the other weights"] == pytest.approx(
        2 * (WEIGHTS - JOINED) / 2**30
    )
    assert set(more) == {"engine: copy of the other weights", "engine: prefill beside training"}
    assert beside["step_s"] == shared["step_s"]
    assert any("engine.embedded.overlap" in note for note in beside["notes"])
    assert not any("engine.embedded.overlap" in note for note in shared["notes"])


def test_without_staleness_there_is_nothing_beside_training(run):
    _, result = run("--engine", "embedded")

    assert not any("other weights" in name for name in engine_parts(result))
