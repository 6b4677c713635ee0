"""The source `function`: a function in a file, which may go on from a number or give all rows."""

from itertools import islice

import pytest

from rlhf_core import ConfigError, PluginError
from rlhf_plugin_sources.function import COMPONENT, FunctionSource, FunctionSourceConfig
from rlhf_testing.conformance import run_checks
from rlhf_testing.errors import has_code

CODE = """
def endless(start):
    while True:
        yield {"n": start}
        start += 1

def three():
    return [{"n": n} for n in range(3)]

def table():
    return {"n": 1}

rows = [{"n": 1}]
"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "my_rows.py"
    file.write_text(CODE)
    return lambda name: f"{file}:{name}"


@pytest.mark.parametrize("name", ["endless", "three"])
def test_it_keeps_the_promises_of_a_source(path, name):
    outcomes = run_checks("rlhf_data_sources", COMPONENT, path=path(name))

    assert len(outcomes) > 4
    assert [outcome for outcome in outcomes if outcome.failed] == []


def test_a_function_with_a_parameter_goes_on_from_a_number(path):
    source = FunctionSource(FunctionSourceConfig(path=path("endless")))

    assert [row["n"] for row in islice(source.rows(1_000_000), 2)] == [1_000_000, 1_000_001]


def test_of_a_function_without_parameters_the_rows_before_are_left_out(path):
    assert list(FunctionSource(FunctionSourceConfig(path=path("three"))).rows(2)) == [{"n": 2}]


def test_a_function_that_a_program_gave_needs_no_file():
    source = FunctionSource(FunctionSourceConfig(path="<given>"), code=lambda: [{"n": 7}])

    assert list(source.rows(0)) == [{"n": 7}]


def test_rows_of_a_data_set_come_as_they_were_written():
    from datasets import Dataset

    rows = [{"info": {"x": 1}}, {"info": {"y": "s"}}]
    config = FunctionSourceConfig(path="<given>")

    for code in (
        lambda: Dataset.from_list(rows),
        lambda start: Dataset.from_list(rows).to_iterable_dataset().skip(start),
    ):
        source = FunctionSource(config, code=code)
        assert [*source.rows(0), *source.rows(1)] == [*rows, rows[1]]


def test_what_gives_no_rows_is_refused(path):
    with pytest.raises(
        PluginError,
        match=r"my_rows\.py:table gave a dict",
        check=has_code("data/source-without-rows"),
    ):
        FunctionSource(FunctionSourceConfig(path=path("table"))).rows(0)
    with pytest.raises(
        PluginError, match=r"my_rows\.py:rows is a list", check=has_code("data/source-no-function")
    ):
        FunctionSource(FunctionSourceConfig(path=path("rows")))


def test_a_name_that_is_not_there_is_refused_before_the_run(path):
    with pytest.raises(
        ConfigError, match="Did you mean 'endless'", check=has_code("config/not-in-file")
    ):
        FunctionSourceConfig(path=path("endles")).check_outside()
