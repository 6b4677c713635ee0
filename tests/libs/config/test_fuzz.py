"""Whatever is written, a configuration is accepted and can be repeated, or refused with one of our errors."""

from copy import deepcopy

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_config import Layer, parse_flags, path_problems, read_toml, resolve, write_toml
from rlhf_config.layers import insert
from rlhf_config.resolve import known_options
from rlhf_config.train import TRAIN
from rlhf_core import RLHFError

PATHS = [
    *known_options(TRAIN, []),
    *(
        "train",
        "actor.plain",
        "actor.plain.lr",
        "actor.momentum.betas",
        "reward.pattern.weight",
        "reward.pattern",
    ),
    *(
        "estimator",
        "model",
        "rollout.maze.gamma",
        "algo.advantage.baseline.gamma",
        "nonsense",
        "a.b.c",
    ),
]
WORDS = [
    "1",
    "8",
    "0",
    "-1",
    "0.5",
    "nan",
    "inf",
    "1e400",
    "none",
    "true",
    "x",
    "",
    "{",
    "plain",
    "sample:plain",
]
WORDS += [
    "momentum",
    "turns",
    "maze",
    "pattern",
    "x.py",
    "x.py:y",
    "::",
    "./m",
    "k3",
    "loss",
    "é",
    "a=b",
    "1_0",
]
VALUES = [
    1,
    0,
    -1,
    True,
    "x",
    "none",
    0.5,
    float("nan"),
    [],
    [1],
    ["x"],
    [[1]],
    [{"a": 1}],
    {},
    {"a": 1},
    10**30,
]

flags = st.lists(
    st.tuples(st.sampled_from(PATHS), st.lists(st.sampled_from(WORDS), max_size=2)), max_size=3
)
entries = st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(VALUES)), max_size=2)


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(flags=flags, entries=entries)
def test_a_configuration_is_repeatable_or_refused(resolved, plugins, tmp_path, flags, entries):
    words = [word for path, values in flags for word in (f"--{path}", *values)]
    tree = {}
    for path, value in entries:
        try:
            # Values are the test's own: a tree that is inserted into them would be there for every example.
            insert(tree, path, deepcopy(value))
        except KeyError:
            continue
    layer = Layer.of(tree, "file.toml")
    refused = ""
    try:
        first = resolved(*words, files=[layer])
        path_problems(first, [layer, parse_flags(words)])
    except RLHFError as error:
        refused = str(error)
    if refused:
        assert len(refused.splitlines()) <= 6
        return
    write_toml(first, tmp_path / "config.toml")
    again = resolve([read_toml(tmp_path / "config.toml")], plugins)
    assert {**again.tree, "resume": None} == {**first.tree, "resume": None}
