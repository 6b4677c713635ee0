"""Options from Python: paths, short names, sections, objects and rows, and what is refused."""

from pathlib import Path

import pytest

from rlhf.options import PythonOptions
from rlhf_config.layers import lookup, merge
from rlhf_core import ConfigError, plugins
from rlhf_testing.checks import assert_imports_stay_light
from rlhf_testing.errors import has_code

ROWS = [{"prompt": "a"}]


@pytest.fixture
def loaded():
    return plugins.load("")


def values_of(loaded, config=None, **keywords):
    return merge(PythonOptions(config, keywords, loaded).layers).values


def test_importing_the_package_imports_nothing_heavy():
    assert_imports_stay_light("rlhf")


def test_short_names_sections_and_paths_are_the_same_option(loaded):
    for keywords in ({"steps": 3}, {"train": {"steps": 3}}, {"train.steps": 3}):
        assert lookup(values_of(loaded, **keywords), "train.steps") == 3


def test_a_mapping_is_a_section_also_where_a_short_name_has_its_name(loaded):
    values = values_of(loaded, model={"path": "m", "dtype": "bfloat16"}, data="x.jsonl")

    assert values["model"] == {"path": "m", "dtype": "bfloat16"}
    assert values["data"]["train"] == "x.jsonl"


def test_keywords_win_over_configurations_and_those_over_earlier_ones(loaded, tmp_path):
    (tmp_path / "run.toml").write_text("seed = 1\n[train]\nsteps = 1\nepochs = 1\n")
    config = [tmp_path / "run.toml", {"seed": 2, "train": {"steps": 2}}]

    values = values_of(loaded, config, steps=3)

    assert (values["seed"], values["train"]) == (2, {"steps": 3, "epochs": 1})


def test_the_defaults_are_those_of_the_command_line(loaded):
    assert lookup(values_of(loaded), "algo.advantage.estimator") == "reinforce_baseline"


def test_objects_stand_where_names_do_alone_and_in_lists(loaded):
    def mine(response):
        return 0.0

    values = values_of(loaded, reward=[mine, "exact_match"], estimator=lambda batch: None)

    assert values["reward"]["use"] == ["python:mine", "exact_match"]
    assert values["reward"]["mine"] == {"isolate": False}
    assert lookup(values, "algo.advantage.estimator") == "python:given"


def test_what_the_caller_says_of_isolation_is_kept(loaded):
    def mine(response):
        return 0.0

    values = values_of(loaded, reward={"use": mine, "mine": {"isolate": True}})

    assert values["reward"]["mine"] == {"isolate": True}


def test_rows_become_files_below_the_run_folder(loaded):
    options = PythonOptions(
        None, {"data": ROWS, "eval": {"data": ["x.jsonl", ROWS]}, "output": "out"}, loaded
    )

    values = merge(options.layers).values
    assert [Path(entry).name for entry in values["data"]["train"]] == ["train.jsonl"]
    assert values["data"]["train"][0].startswith("out/data/")
    assert [Path(entry).name for entry in values["eval"]["data"]] == ["x.jsonl", "eval.jsonl"]
    assert not Path("out").exists()


def test_paths_and_numbers_of_numpy_are_plain(loaded):
    import numpy as np

    values = values_of(loaded, model=Path("m"), seed=np.int64(3))

    assert (values["model"]["path"], values["seed"]) == ("m", 3)


class Frame:
    """As a data frame of pandas, which need not be installed."""

    def to_dict(self, orient):
        return []


@pytest.mark.parametrize(
    ("config", "keywords", "said", "code"),
    [
        (
            None,
            {"steps": 3, "train": {"steps": 4}},
            "'train.steps' is given twice",
            "config/given-twice",
        ),
        (
            None,
            {"data": 3},
            r"keyword data: got int; expected files, a list of rows",
            "config/not-rows",
        ),
        (None, {"data": iter([{"prompt": "a"}])}, r"as list\(rows\)$", "config/not-rows"),
        (None, {"data": Frame()}, r"as frame\.to_dict\('records'\)$", "config/not-rows"),
        (None, {"estimator": 3}, r"keyword estimator: got 3 \(int\)", "config/not-a-component"),
        (
            None,
            {"train.steps": 3, "train.steps.x": 4},
            "given as an option and as a section",
            "config/given-twice",
        ),
        (3, {}, "config: got int; expected the path of a TOML file", "config/not-a-configuration"),
        ({3: 4}, {}, "expected names of options, got 3", "config/names-of-options"),
        ("nowhere.toml", {}, "nowhere.toml: cannot read it", "config/unreadable-file"),
    ],
)
def test_what_is_written_wrongly_is_named(loaded, config, keywords, said, code):
    with pytest.raises(ConfigError, match=said, check=has_code(code)):
        PythonOptions(config, keywords, loaded)
