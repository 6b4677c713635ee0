import pickle
import types
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from rlhf.given_objects import give
from rlhf_core import (
    Component,
    Config,
    ConfigError,
    MissingDependency,
    PluginError,
    Registered,
    errors,
)
from rlhf_core.component import missing_requirements, name_component
from rlhf_core.plugins import empty, load
from rlhf_testing.errors import has_code


class Options(Config):
    share: float = Field(0.5, ge=0.0, le=1.0, description="a share")


@pytest.fixture
def distribution(tmp_path):
    """An installed distribution with an extra."""

    def make(*requirements):
        info = tmp_path / "acme-1.0.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", "Name: acme", "Version: 1.0", "Provides-Extra: fast"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requirements]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        return PathDistribution(info)

    return make


@pytest.mark.parametrize(
    "name", ["", "Upper", "1st", "with-dash", "with space", "plugin:name", "_x"]
)
def test_names_are_lower_case_words(name):
    with pytest.raises(PluginError, check=has_code("plugin/malformed-name")):
        Component(name=name, factory="a:b")


def test_aliases_are_names_too():
    with pytest.raises(PluginError, match="'Bad'", check=has_code("plugin/malformed-name")):
        Component(name="good", factory="a:b", aliases=("Bad",))


@pytest.mark.parametrize("factory", ["", "module", "module:", ":name", "a b:c", "module:name()"])
def test_factories_are_written_as_module_and_name(factory):
    with pytest.raises(
        PluginError, match=r"^factory ", check=has_code("plugin/malformed-reference")
    ):
        Component(name="x", factory=factory)


def test_needs_can_be_any_collection():
    assert Component(name="x", factory="a:b", needs={"values"}).needs == frozenset({"values"})


def test_configs_are_frozen_closed_and_finite():
    with pytest.raises(ValidationError, match="Extra inputs"):
        Options(shares=1)
    with pytest.raises(ValidationError, match="finite"):
        Options(share=float("nan"))
    with pytest.raises(ValidationError, match="frozen"):
        Options().share = 0.1


def test_the_factory_is_imported_when_it_is_built():
    entry = Registered(Component(name="x", factory="collections:OrderedDict"), "plugin")

    assert type(entry.build()).__name__ == "OrderedDict"


def test_the_metadata_of_a_distribution_is_read_once_for_all_of_its_components(
    distribution, monkeypatch
):
    """Each look parses it anew, a third of a millisecond; runs ask for the origin of every component."""
    acme, read = distribution(), []
    real = PathDistribution.read_text
    monkeypatch.setattr(
        PathDistribution, "read_text", lambda self, name: read.append(name) or real(self, name)
    )

    origins = [
        Registered(Component(name=name, factory="a:b"), "acme", acme).origin for name in "xyz"
    ]

    assert origins == ["acme 1.0"] * 3
    assert read == ["METADATA"]


def test_a_factory_without_its_name_is_the_plugins_fault():
    entry = Registered(Component(name="x", factory="collections:NoSuchThing"), "acme")

    with pytest.raises(
        PluginError,
        match=r"acme:x.*'collections' has no 'NoSuchThing'",
        check=has_code("plugin/no-factory"),
    ):
        entry.load()


def test_errors_while_building_name_the_plugin():
    def explode(config):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        Registered(Component(name="x", factory=explode), "acme").build()

    assert caught.value.__notes__ == ["in plugin acme (acme), component x"]


def test_a_factory_that_returns_nothing_is_named():
    """As one that lacks its ``return``: what is called later would raise, far from here and without a name."""
    entry = Registered(Component(name="x", factory=lambda config: None), "acme")

    with pytest.raises(
        PluginError,
        match=r"^acme:x \(acme\): its factory returned None",
        check=has_code("plugin/wrong-answer"),
    ):
        entry.build()


def test_the_source_is_found_without_importing():
    entry = Registered(Component(name="x", factory="rlhf_testing.tiny:write_tiny_model"), "core")

    path, _, line = entry.source().rpartition(":")
    assert path.endswith("rlhf_testing/tiny.py")
    assert int(line) > 1


def test_the_source_of_what_is_not_there_is_unknown():
    assert (
        Registered(Component(name="x", factory="no_such_module_at_all.x:y"), "p").source() is None
    )


def test_requirements_of_an_extra_are_checked(distribution):
    found = distribution(
        "pydantic>=1; extra == 'fast'",
        "pydantic>=999; extra == 'fast'",
        "surely-not-installed>=2; extra == 'fast'",
        "also-not-installed; extra == 'slow'",
        "nor-this-one",
    )

    missing = missing_requirements(found, "fast")

    assert len(missing) == 2
    assert missing[0].startswith("pydantic>=999 (found ")
    assert missing[1] == "surely-not-installed>=2 (not installed)"


def test_a_missing_extra_says_how_to_install_it(distribution):
    component = Component(name="x", factory="collections:OrderedDict", extra="fast")
    entry = Registered(component, "acme", distribution("surely-not-installed; extra == 'fast'"))

    with pytest.raises(
        MissingDependency, match=r"'acme\[fast\]'", check=has_code("plugin/missing-dependency")
    ):
        entry.load()


def test_a_missing_extra_is_found_for_a_class_too(distribution):
    made = []

    class Fast:
        def __init__(self, config):
            made.append(config)

    component = Component(name="quick", factory=Fast, extra="fast")
    registered = Registered(component, "acme", distribution('not-there>=1; extra == "fast"'))

    with pytest.raises(
        MissingDependency,
        match=r"not-there>=1 \(not installed\)",
        check=has_code("plugin/missing-dependency"),
    ):
        registered.build()
    assert made == []


def test_the_source_of_a_class_is_its_file_and_line():
    path, _, line = (
        Registered(Component(name="x", factory=Options), "acme").source().rpartition(":")
    )

    assert Path(path).read_text().splitlines()[int(line) - 1] == "class Options(Config):"


def test_without_an_extra_nothing_is_missing(distribution):
    assert missing_requirements(distribution("surely-not-installed; extra == 'fast'"), None) == []
    assert missing_requirements(None, "fast") == []


def test_every_error_pickles():
    """They cross process boundaries."""
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.RLHFError):
            again = pickle.loads(pickle.dumps(kind("what happened")))
            assert type(again).__name__ == name
            assert str(again) == "what happened"


ESTIMATORS = "rlhf_advantage_estimators"


def given_divide(batch):
    return 1 / 0


def given_one(batch):
    return 1


class GivenDivide:
    def __call__(self, batch):
        return 1 / 0


INNER = "def divide(config=None):\n    return 1 / 0\n"
OUTER = "def call(function):\n    return function()\n"


def module_of(name, source):
    """Return a module that does not have to be imported: its functions know its name."""
    module = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), module.__dict__)
    return module


@pytest.fixture
def inner():
    return module_of("acme.inner", INNER)


@pytest.fixture
def outer():
    return module_of("acme.outer", OUTER)


def registered(name, factory):
    return Registered(Component(name=name, factory=factory), "acme")


def error_of(call, *arguments):
    with pytest.raises((ArithmeticError, ConfigError)) as caught:
        call(*arguments)
    return caught.value


def test_the_component_whose_module_raised_is_named(inner):
    error = error_of(inner.divide)

    note = name_component(
        error, [registered("other", "acme.other:f"), registered("it", "acme.inner:f")]
    )

    assert note == "in plugin acme (acme), component it"
    assert error.__notes__ == [note]


def test_of_a_component_that_calls_another_the_inner_one_is_named(inner, outer):
    error = error_of(outer.call, inner.divide)

    note = name_component(
        error, [registered("executor", "acme.outer:f"), registered("environment", "acme.inner:f")]
    )

    assert note.endswith("component environment")


def test_a_component_is_named_for_what_it_calls_elsewhere(inner, outer):
    error = error_of(outer.call, inner.divide)

    assert name_component(error, [registered("executor", "acme.outer:f")]).endswith("executor")


def test_a_factory_that_is_no_text_has_its_module(inner):
    error = error_of(inner.divide)

    assert name_component(error, [registered("it", inner.divide)]).endswith("component it")


def test_of_a_module_with_several_components_the_one_whose_code_it_is_is_named():
    module = module_of(
        "acme.both",
        "def one(batch):\n    return helper()\nclass Other:\n    def __call__(self, batch):\n        return helper()\n"
        "def helper():\n    return 1 / 0\n",
    )
    entries = [registered("one", module.one), registered("other", "acme.both:Other")]

    assert name_component(error_of(module.one, None), entries).endswith("component one")
    assert name_component(error_of(module.Other(), None), entries).endswith("component other")


def test_a_component_in_a_file_of_the_users_is_named(tmp_path):
    (tmp_path / "mine.py").write_text("def divide(batch):\n    return 1 / 0\n")
    entry = empty().get("rlhf_advantage_estimators", f"{tmp_path}/mine.py:divide")

    note = name_component(error_of(entry.build(), None), [entry])

    assert note == f"in plugin {tmp_path}/mine.py ({tmp_path}/mine.py), component divide"


@pytest.mark.parametrize("given", [given_divide, GivenDivide, GivenDivide()])
def test_a_component_that_a_program_gave_is_named(given):
    loaded = load("")
    entry = loaded.get(ESTIMATORS, give(loaded, ESTIMATORS, given, "estimator"))
    other = loaded.get(ESTIMATORS, give(loaded, ESTIMATORS, given_one, "estimator"))

    note = name_component(error_of(entry.build(), None), [other, entry])

    assert note == f"in plugin python (python), component {entry.name}"


def test_an_exception_of_no_component_stays_as_it_is(inner):
    error = error_of(inner.divide)

    assert name_component(error, [registered("other", "acme.other:f")]) == ""
    assert not hasattr(error, "__notes__")


def test_what_was_noted_when_the_component_was_built_is_not_noted_twice():
    entry = registered("it", module_of("acme.inner", INNER).divide)
    error = error_of(entry.build)

    note = name_component(error, [entry])

    assert error.__notes__ == [note] == ["in plugin acme (acme), component it"]


def test_where_a_module_has_several_components_their_plugin_is_named(inner):
    error = error_of(inner.divide)
    entries = [registered("one", "acme.inner:f"), registered("other", "acme.inner:g")]

    assert name_component(error, entries) == "in plugin acme (acme)"


def test_an_interrupt_is_nobodys_mistake(outer):
    def press():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        outer.call(press)

    assert name_component(caught.value, [registered("it", "acme.outer:f")]) == ""


def test_messages_of_this_project_name_their_component_themselves(outer):
    def refuse():
        raise ConfigError("no")

    assert name_component(error_of(outer.call, refuse), [registered("it", "acme.outer:f")]) == ""
