import pytest

from rlhf_core import ConfigError
from rlhf_core.config import Layer, read_toml
from rlhf_core.config.layers import leaves, lookup, merge


def test_later_layers_win_leaf_by_leaf():
    first = Layer.of({"train": {"steps": 1, "epochs": 2}, "seed": 3}, "first")
    second = Layer.of({"train": {"steps": 9}}, "second")

    merged = merge([first, second])

    assert merged.values == {"train": {"steps": 9, "epochs": 2}, "seed": 3}
    assert merged.origins["train.steps"].label == "second: train.steps"
    assert merged.origins["train.epochs"].label == "first: train.epochs"


def test_lists_are_replaced_as_a_whole():
    merged = merge([Layer.of({"stop": ["a", "b"]}), Layer.of({"stop": ["c"]})])

    assert merged.values == {"stop": ["c"]}


def test_merging_leaves_the_layers_as_they_were():
    values = {"train": {"steps": 1}}
    merge([Layer.of(values), Layer.of({"train": {"steps": 2}})])

    assert values == {"train": {"steps": 1}}


@pytest.mark.parametrize(
    ("below", "above", "part"),
    [
        (
            {"actor": {"optim": "adam"}},
            {"actor": {"optim": {"lr": 1}}},
            "is an option, not a section",
        ),
        ({"train": {"steps": 1}}, {"train": 3}, "is a section, not an option"),
    ],
)
def test_a_section_cannot_meet_a_value(below, above, part):
    with pytest.raises(ConfigError, match=part):
        merge([Layer.of(below), Layer.of(above)])


def test_lookup_finds_values_and_tables_and_nothing():
    values = {"a": {"b": {"c": 1}}}

    assert lookup(values, "a.b.c") == 1
    assert lookup(values, "a.b") == {"c": 1}
    assert lookup(values, "a.x.c") is None
    assert lookup(values, "a.b.c.d") is None


def test_leaves_are_everything_that_is_no_table():
    assert dict(leaves({"a": {"b": 1, "c": {"d": [2]}}, "e": {}})) == {
        "a.b": 1,
        "a.c.d": [2],
        "e": {},
    }


def test_a_file_names_itself_in_its_origins(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[train]\nsteps = 3\n")

    layer = read_toml(path)

    assert layer.values == {"train": {"steps": 3}}
    assert layer.origins["train.steps"].label == f"{path}: train.steps"
    assert not layer.origins["train.steps"].typed


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"[train\nsteps = 3", "not valid TOML.*line 1"),
        (b"a = " + 100_000 * b"[", "tables at most 32 deep"),
        (b"a" + 40 * b".a" + b" = 1", "tables at most 32 deep"),
        (b"a = " + 40 * b"[" + 40 * b"]", "tables at most 32 deep"),
        (b"a = 1\na = 2", "not valid TOML"),
        (b"\xff\xfe", "UTF-8"),
        (None, "cannot read it"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, content, part):
    path = tmp_path / "run.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ConfigError, match=part) as caught:
        read_toml(path)

    assert f"-c {path}" in str(caught.value)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot read it"):
        read_toml(tmp_path)
