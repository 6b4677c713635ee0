"""Objects of a Python program as components: names, digests, and what cannot be one."""

import functools

import pytest

from rlhf.given_objects import give, name_of, source_digest
from rlhf_core import Component, Config, ConfigError, UnknownComponent, plugins
from rlhf_core.capabilities import IN_PROCESS
from rlhf_testing.errors import has_code

LOSSES, REWARDS, SHAPERS = "rlhf_policy_losses", "rlhf_rewards", "rlhf_reward_shapers"


class MyShaper:
    """Changes nothing."""

    def shape(self, batch, info):
        return batch, {}


class Sized(Config):
    size: int = 3


class WithOptions:
    def __init__(self, config: Sized):
        self.size = config.size


def my_loss(inputs):
    """A loss."""


@pytest.fixture
def loaded():
    return plugins.load("")


def test_a_function_is_the_component_itself_and_has_its_name(loaded):
    name = give(loaded, LOSSES, my_loss, "loss")

    assert name == "python:my_loss"
    entry = loaded.get(LOSSES, name)
    assert entry.build() is my_loss
    assert entry.component.summary == "A loss."
    assert IN_PROCESS in entry.component.needs


def test_a_class_is_made_with_its_options_or_without(loaded):
    sized = loaded.get(SHAPERS, give(loaded, SHAPERS, WithOptions, "shaper"))
    plain = loaded.get(SHAPERS, give(loaded, SHAPERS, MyShaper, "shaper"))

    assert sized.name == "with_options"
    assert sized.build(sized.validate({"size": 5})).size == 5
    assert isinstance(plain.build(), MyShaper)


def test_an_instance_is_used_as_it_is(loaded):
    shaper = MyShaper()

    assert loaded.get(SHAPERS, give(loaded, SHAPERS, shaper, "shaper")).build() is shaper


def test_a_component_keeps_its_options_and_gains_the_need(loaded):
    mine = Component(name="mine", factory=WithOptions, config=Sized)

    entry = loaded.get(SHAPERS, give(loaded, SHAPERS, mine, "shaper"))

    assert entry.component.config is Sized
    assert entry.component.needs == {IN_PROCESS}


def test_two_objects_of_one_name_are_told_apart(loaded):
    names = [give(loaded, REWARDS, lambda response: 0.0, "reward") for _ in range(2)]

    assert names == ["python:given", "python:given_2"]


def test_a_function_for_a_reward_is_wrapped_as_one_in_a_file_is(loaded):
    def score(response):
        return 1.0

    entry = loaded.get(REWARDS, give(loaded, REWARDS, score, "reward"))

    assert entry.validate({}).path == "python:score"
    assert hasattr(entry.build(entry.validate({})), "score")


@pytest.mark.parametrize(
    ("hook", "thing", "said", "code"),
    [
        (SHAPERS, my_loss, "A function can be no reward shaper", "config/function-given"),
        (
            SHAPERS,
            3,
            "expected a name, or reward shaper as a class or an object",
            "config/wrong-kind-of-object",
        ),
        (
            LOSSES,
            3,
            "expected a name, or policy loss as a function, a class or an object",
            "config/wrong-kind-of-object",
        ),
        (
            LOSSES,
            lambda inputs, more: None,
            r"with 1 argument, \(inputs\), .* takes \(inputs, more\)",
            "config/not-callable",
        ),
        (
            LOSSES,
            MyShaper,
            r"objects of MyShaper cannot be called; expected __call__ with \(inputs\)",
            "config/object-not-callable",
        ),
        (LOSSES, MyShaper(), "objects of MyShaper cannot be called", "config/object-not-callable"),
        (
            "rlhf_environments",
            MyShaper(),
            "expected the class itself, of which one is made",
            "config/object-for-class",
        ),
    ],
)
def test_what_cannot_be_such_a_component_is_refused(loaded, hook, thing, said, code):
    with pytest.raises(ConfigError, match=said, check=has_code(code)) as caught:
        give(loaded, hook, thing, "keyword x")

    assert str(caught.value).startswith("keyword x")


def test_the_plugin_record_has_the_digest_of_the_source(loaded):
    give(loaded, LOSSES, my_loss, "loss")

    assert loaded.loaded["python:my_loss"] == source_digest(my_loss)
    assert source_digest(my_loss).startswith("source, sha256 ")
    assert source_digest(my_loss) != source_digest(test_an_instance_is_used_as_it_is)
    assert source_digest(MyShaper()) == source_digest(MyShaper)
    assert source_digest(functools.partial(my_loss, 1)) == source_digest(my_loss)
    assert source_digest(len) == "given without source code"


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (my_loss, "my_loss"),
        (MyShaper(), "my_shaper"),
        (WithOptions, "with_options"),
        (lambda x: x, "given"),
        (functools.partial(my_loss, 1), "my_loss"),
    ],
)
def test_names_are_in_snake_case(thing, name):
    assert name_of(thing) == name


def test_a_run_that_lacks_the_object_says_where_it_was(loaded):
    with pytest.raises(UnknownComponent, check=has_code("plugin/object-lost")):
        loaded.get(LOSSES, "python:my_loss")
