"""The plugin as a run sees it, and shapers in a row."""

import numpy as np
import pytest

from rlhf_core import plugins
from rlhf_plugin_algorithms.shapers.clip import Clip, ClipConfig
from rlhf_plugin_algorithms.shapers.overlong import Overlong, OverlongConfig

OURS = ("algorithms", "sources")
SHAPERS = {"overlong", "stop_properly", "clip", "normalize", "length_bonus"}
SAMPLERS = {"by_column", "curriculum"}
SOURCES = {"function", "hub_stream", "jsonl_stream"}
FILTERS = {"dynamic_sampling", "zero_variance", "drop_stale", "drop_errors"}


@pytest.fixture(scope="module")
def registries():
    return plugins.load("").registries


@pytest.mark.parametrize(
    ("hook", "names"),
    [
        ("rlhf_data_sources", SOURCES),
        ("rlhf_prompt_samplers", SAMPLERS),
        ("rlhf_reward_shapers", SHAPERS),
        ("rlhf_sample_filters", FILTERS),
    ],
)
def test_all_components_are_registered_with_described_options(registries, hook, names):
    ours = {entry.name: entry for entry in registries[hook] if entry.plugin in OURS}

    assert ours.keys() == names
    for entry in ours.values():
        assert entry.component.summary
        assert all(field.description for field in entry.component.config.model_fields.values())


def test_shapers_act_one_after_the_other(Row, columns, info):
    batch = columns(Row(reward=3.0, turns=(20,)))
    overlong, clip = Overlong(OverlongConfig()), Clip(ClipConfig(low=-1.0, high=1.0))

    def through(*shapers):
        result = batch
        for shaper in shapers:
            result, _ = shaper.shape(result, info)
        return result.reward

    np.testing.assert_array_equal(through(overlong, clip), [1.0])  # 3 - 1, cut to 1
    np.testing.assert_array_equal(through(clip, overlong), [0.0])  # cut to 1, minus 1
