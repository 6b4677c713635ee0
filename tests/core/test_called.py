"""Components that are called like functions: what takes other arguments is named."""

import ast

import pytest

from rlhf_core import ConfigError
from rlhf_core.called import CALLED_KINDS, check_definition
from rlhf_testing.errors import has_code

CORRECTIONS = "rlhf_is_corrections"


@pytest.mark.parametrize(
    ("source", "fits"),
    [
        ("def f(a, b, c): ...", True),
        ("def f(a, b, c, d=1, *, e=2): ...", True),
        ("def f(*columns): ...", True),
        ("def f(a, b, c, d): ...", False),
        ("def f(a, b): ...", False),
        ("def f(a, b, c, *, e): ...", False),
        ("@anything\ndef f(a): ...", True),  # the decorator may have changed it
        ("class F:\n    def __call__(self, a, b, c): ...", True),
        ("class F:\n    def __call__(self, a, b): ...", False),
        ("class F(Base): ...", True),  # the base's source may be elsewhere
        ("f = partial(g, 1)", True),
    ],
)
def test_a_definition_is_judged_by_its_source(source, fits):
    (node,) = ast.parse(source).body

    if fits:
        check_definition(node, CORRECTIONS, "mine.py:f")
        return
    with pytest.raises(
        ConfigError,
        match=r"^mine\.py:f.*3 arguments, \(old_logprobs",
        check=has_code("config/not-callable"),
    ):
        check_definition(node, CORRECTIONS, "mine.py:f")


def test_only_kinds_of_components_are_called():
    from rlhf_core.hookspecs import COMPONENT_HOOKS

    assert CALLED_KINDS.keys() <= COMPONENT_HOOKS.keys()
