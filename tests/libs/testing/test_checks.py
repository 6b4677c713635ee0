import sys
from typing import ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from rlhf_core import Component, Config, PluginError
from rlhf_testing.checks import assert_imports_stay_light, check_component, check_plugin
from rlhf_testing.errors import has_code


class Good(Config):
    size: int = Field(1, ge=1, description="how large")


class Undescribed(Config):
    size: int = 1


class Open(Config):
    model_config = ConfigDict(extra="allow")


class Forgetful(Config):
    size: int = Field(1, exclude=True, description="lost in JSON")
    other: float = Field(0.1, description="kept")

    def __eq__(self, other):
        return isinstance(other, BaseModel) and self.model_fields_set == other.model_fields_set


class Named(Config):
    """Options of the component, with answers of the wrong types."""

    key: str = Field("answer", description="column")
    timeout_s: float = Field(1.0, description="seconds")
    columns: ClassVar = {"answer": "key"}
    words: ClassVar = frozenset()

    def columns_needed(self):
        return self.columns

    def needed_by_options(self):
        return self.words


class Rewards(Named):
    def rewards_named(self):
        return ["quality"]


class Metrics(Named):
    def metrics_named(self):
        return ["loss"]


class List(Named):
    columns: ClassVar = ["answer"]


class WithSection(Named):
    columns: ClassVar = {"answer": "reward.x.key"}


class Idle(Named):
    def without_effect(self):
        return {"rank": "key is set. Leave it out."}


class Words(Named):
    words: ClassVar = ["values"]


def component(**changes):
    return Component(
        **{
            "name": "x",
            "factory": "collections:OrderedDict",
            "summary": "s",
            "config": Good,
            **changes,
        }
    )


@pytest.fixture
def module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, source):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return write


def test_a_good_component_passes():
    check_component(component())


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"summary": ""}, "expected a summary"),
        ({"config": Undescribed}, "options without a description: size"),
        ({"config": Open}, "accepts unknown options"),
        ({"config": Forgetful}, "change on the way through JSON"),
        ({"factory": "collections:abc"}, "is not callable"),
        ({"config": List}, r"columns_needed\(\) is \['answer'\]; expected a mapping"),
        ({"config": Rewards}, r"rewards_named\(\) is \['quality'\]; expected a mapping"),
        ({"config": Metrics}, r"metrics_named\(\) is \['loss'\]; expected a mapping"),
        ({"config": WithSection}, "names the options reward.x.key; expected some of its own, key,"),
        ({"config": Idle}, r"without_effect\(\) names the options rank; expected some of its own"),
        ({"config": Words}, r"needed_by_options\(\) is \['values'\]; expected a frozenset"),
    ],
)
def test_a_broken_promise_is_named(changes, part):
    with pytest.raises(AssertionError, match=part):
        check_component(component(**changes))


def test_an_option_may_not_have_a_name_that_every_component_of_the_kind_has():
    check_component(component(config=Named), "rlhf_policy_losses")
    with pytest.raises(
        AssertionError, match="timeout_s: expected other names, since every reward has"
    ):
        check_component(component(config=Named), "rlhf_rewards")


def test_a_factory_that_is_not_there_is_the_plugins_fault():
    with pytest.raises(PluginError, match="has no 'Missing'", check=has_code("plugin/no-factory")):
        check_component(component(factory="collections:Missing"))


def test_a_light_module_passes(module):
    assert_imports_stay_light(module("light_module", "import json"))


def test_a_heavy_module_is_named(module):
    module("matplotlib", "")  # a stand-in: the check looks at names
    with pytest.raises(AssertionError, match="imports matplotlib"):
        assert_imports_stay_light(module("heavy_module", "import matplotlib"))


def test_a_module_that_raises_shows_its_error(module):
    with pytest.raises(AssertionError, match="no_such_thing"):
        assert_imports_stay_light(module("raising_module", "import no_such_thing"))


def test_a_whole_plugin_is_checked(module):
    source = (
        "from rlhf_core import Component, hookimpl\n"
        "@hookimpl\n"
        "def rlhf_policy_losses():\n"
        "    return [Component(name='x', factory='collections:OrderedDict', summary='{}')]\n"
    )
    good = check_plugin(module("good_plugin", source.format("fine")))
    assert good.get("rlhf_policy_losses", "x").plugin == "good_plugin"

    with pytest.raises(AssertionError, match="expected a summary"):
        check_plugin(module("bad_plugin", source.format("")))
