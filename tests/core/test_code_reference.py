import sys

import pytest

from rlhf_core import Config, ConfigError
from rlhf_core.called import CALLED_KINDS
from rlhf_core.code_reference import is_reference, parse
from rlhf_core.contracts import ComponentRef
from rlhf_core.plugins import empty
from rlhf_testing.errors import has_code

ESTIMATORS = "rlhf_advantage_estimators"
ENVIRONMENTS = "rlhf_environments"

SOURCE = '''
from __future__ import annotations

import helper_beside
from pydantic import Field
from rlhf_core import Component, Config


def double(batch, *others):
    """Twice the batch."""
    return 2 * batch


async def waits():
    pass


class Plain:
    """Nothing to say."""


class GridOptions(Config):
    size: int = Field(3, ge=1, description="cells")


class GridWorld:
    def __init__(self, config: GridOptions) -> None:
        self.config = config


class Untyped:
    def __init__(self, config):
        self.config = config


class UntypedSize:
    def __init__(self, size):
        self.size = size


class Inherits(GridWorld):
    pass


def takes_nothing():
    pass


described = Component(name="anything", factory=GridWorld, config=GridOptions, needs={"values"})
number = 3
'''


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "helper_beside", raising=False)
    (tmp_path / "helper_beside.py").write_text("")
    (tmp_path / "mine.py").write_text(SOURCE)
    return tmp_path / "mine.py"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mine.py:double", True),
        ("./folder/mine.py:double", True),
        ("mine.py", True),
        ("plugin:name", False),
        ("name", False),
    ],
)
def test_references_are_told_from_plugin_names(name, expected):
    assert is_reference(name) is expected


@pytest.mark.parametrize("text", ["mine.py", "mine.py:", "mine.py:a b", "mine.py:3"])
def test_a_reference_without_a_name_is_refused(text):
    with pytest.raises(ConfigError, check=has_code("config/no-name-in-file")):
        parse(text)


@pytest.mark.parametrize(
    ("attribute", "name"),
    [
        ("GridWorld", "grid_world"),
        ("double", "double"),
        ("HTTPReward2", "http_reward2"),
        ("_X", "x"),
    ],
)
def test_the_component_is_called_like_the_attribute_in_snake_case(attribute, name):
    assert parse(f"mine.py:{attribute}").name == name


@pytest.mark.parametrize("hook", sorted(CALLED_KINDS))
def test_a_function_is_the_component_itself(file, hook):
    entry = empty().get(hook, "mine.py:double")

    assert entry.component.summary == "Twice the batch."
    assert entry.build()(21) == 42


def test_a_function_that_takes_something_else_is_refused_before_the_file_is_imported(file):
    with pytest.raises(
        ConfigError,
        match=r"^mine\.py:takes_nothing.*\(batch\)",
        check=has_code("config/not-callable"),
    ):
        empty().get(ESTIMATORS, "mine.py:takes_nothing")


def test_a_class_is_made_with_its_config(file):
    entry = empty().get(ENVIRONMENTS, "mine.py:GridWorld")

    made = entry.build(entry.validate({"size": 5}))

    assert type(made).__name__ == "GridWorld"
    assert made.config.size == 5


def test_a_class_without_arguments_is_made_without(file):
    assert type(empty().get(ENVIRONMENTS, "mine.py:Plain").build()).__name__ == "Plain"


def test_an_argument_called_config_needs_no_annotation(file):
    entry = empty().get(ENVIRONMENTS, "mine.py:Untyped")

    assert entry.component.config is Config
    assert type(entry.build().config) is Config


ONE_FILE = (
    SOURCE
    + """

class Median:
    def __init__(self, config):
        self.config = config

    def __call__(self, batch):
        return batch


COMPONENT = Component(name="median", factory=Median, summary="the median", needs={"group>=2"})
"""
)


def test_a_class_is_what_the_component_of_its_file_says(file):
    file.write_text(ONE_FILE)

    entry = empty().get(ESTIMATORS, "mine.py:Median")

    assert (entry.name, entry.component.summary) == ("median", "the median")
    assert entry.component.needs == {"group>=2"}
    assert type(entry.build()).__name__ == "Median"


def test_of_several_descriptions_of_a_class_one_has_to_be_named(file):
    other = 'OTHER = Component(name="middle", factory=Median, needs={"values"})\n'
    file.write_text(ONE_FILE + other)
    assert empty().get(ESTIMATORS, "mine.py:Median").component.needs == {"group>=2"}
    assert empty().get(ESTIMATORS, "mine.py:OTHER").component.needs == {"values"}

    file.write_text(ONE_FILE.replace('"median"', '"centre"') + other)
    with pytest.raises(
        ConfigError,
        match=r"COMPONENT, OTHER all describe Median; name the one",
        check=has_code("config/several-descriptions"),
    ):
        empty().get(ESTIMATORS, "mine.py:Median")


def test_a_component_keeps_what_it_needs(file):
    entry = empty().get(ENVIRONMENTS, "mine.py:described")

    assert entry.name == "described"
    assert entry.component.needs == {"values"}
    assert entry.build().config.size == 3


def test_an_inherited_constructor_takes_its_config(file):
    assert empty().get(ENVIRONMENTS, "mine.py:Inherits").component.config.model_fields.keys() == {
        "size"
    }


@pytest.mark.parametrize("name", ["mine.py:double", "mine.py:Plain"])
def test_nothing_is_imported_where_the_source_says_enough(file, name):
    file.write_text(SOURCE + "\n\nraise SystemError('imported')\n")

    empty().get(ESTIMATORS, name)


@pytest.mark.parametrize("name", ["mine.py:first", "mine.py:second"])
def test_names_that_are_assigned_together_are_each_found(file, name):
    file.write_text(SOURCE + "\n\nfirst, second = described, described\n")

    assert empty().get(ENVIRONMENTS, name).build().config.size == 3


def test_the_qualified_name_round_trips(file):
    """Another process gets the reference by the name that a run records."""
    entry = empty().get(ENVIRONMENTS, "mine.py:GridWorld")
    assert entry.qualified == "mine.py:grid_world"

    plugins = empty()
    made = plugins.build(ComponentRef(kind=ENVIRONMENTS, name=entry.qualified, options={"size": 7}))

    assert made.config.size == 7
    assert plugins.loaded["mine.py"].startswith("file, sha256 ")


def test_a_changed_file_is_another_module(file):
    before = parse("mine.py:double").load()
    file.write_text(SOURCE.replace("2 * batch", "3 * batch"))
    after = parse("mine.py:double").load()

    assert (before(1), after(1)) == (2, 3)


def test_the_files_folder_comes_last_on_the_path(file):
    """A helper beside the file can be imported, but cannot shadow what is installed."""
    parse("mine.py:double").load()

    assert sys.path[-1] == str(file.parent)


@pytest.mark.parametrize(
    ("name", "hook", "part", "code"),
    [
        (
            "missing.py:f",
            ESTIMATORS,
            r"cannot read 'missing\.py': No such file.*looked in",
            "config/unreadable-code",
        ),
        ("mine.py:doubel", ESTIMATORS, "Did you mean 'double'", "config/not-in-file"),
        ("mine.py:zzz", ESTIMATORS, "It has: double, waits, Plain", "config/not-in-file"),
        (
            "mine.py:double",
            ENVIRONMENTS,
            "is a function; this kind of component has to be a class",
            "config/function-for-class",
        ),
        ("mine.py:waits", ESTIMATORS, "is an async function", "config/function-for-class"),
        ("mine.py:number", ESTIMATORS, "is a int; expected a class", "config/no-component"),
        (
            "mine.py:UntypedSize",
            ENVIRONMENTS,
            "annotated with a subclass of rlhf_core.Config",
            "config/class-with-other-arguments",
        ),
    ],
)
def test_what_cannot_be_a_component_is_refused(file, name, hook, part, code):
    with pytest.raises(ConfigError, match=part, check=has_code(code)):
        empty().get(hook, name)


def test_broken_syntax_is_reported_without_importing(file):
    file.write_text("def double(:\n")

    with pytest.raises(
        ConfigError, match=r"not valid Python.*line 1", check=has_code("config/invalid-python")
    ):
        empty().get(ESTIMATORS, "mine.py:double")


def test_a_file_that_raises_is_reported_and_can_be_fixed(file):
    file.write_text(SOURCE.replace("import helper_beside", "import no_such_module_here"))
    with pytest.raises(
        ConfigError,
        match=r"importing mine.py failed: ModuleNotFoundError",
        check=has_code("config/import-failed"),
    ):
        parse("mine.py:double").load()

    file.write_text(f"{SOURCE}\nraise SystemExit(0)\n")
    with pytest.raises(
        ConfigError,
        match=r"importing mine.py failed: SystemExit: 0",
        check=has_code("config/import-failed"),
    ):
        parse("mine.py:double").load()

    file.write_text(SOURCE)
    assert parse("mine.py:double").load()(1) == 2
