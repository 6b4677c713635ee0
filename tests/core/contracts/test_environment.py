"""What an environment's author may state, and what is no statement."""

import pytest

from rlhf_core.contracts import EnvironmentKind, EnvironmentManifest, manifest_of


def test_the_manifest_is_the_classs_attribute_and_may_be_missing():
    class With:
        manifest = EnvironmentManifest(reward_range=(0, 1))

    class Without:
        pass

    assert manifest_of(With) is manifest_of(With()) is With.manifest
    assert manifest_of(Without) is None


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ({"reward_range": (1.0, 0.0)}, "the smaller first"),
        ({"reward_range": (0.0, float("inf"))}, "two finite numbers"),
        ({"version": "1@2"}, "one word without @"),
        ({"version": "one two"}, "one word without @"),
        ({"oracle_tolerance": 1.0}, "from 0 to below 1"),
        (
            {"kind": "tool"},
            "kind: expected one of single_turn, multi_turn, tools, agent; got 'tool'",
        ),
        ({"kind": None}, "kind: expected one of"),
    ],
)
def test_a_statement_that_means_nothing_is_refused(statement, said):
    with pytest.raises(ValueError, match=said):
        EnvironmentManifest(**statement)


def test_a_kind_may_be_written_as_text():
    assert EnvironmentManifest(kind="tools").kind is EnvironmentKind.TOOLS


def test_another_object_is_no_manifest():
    class Wrong:
        manifest = "MIT"

    with pytest.raises(TypeError, match=r"Wrong: expected an EnvironmentManifest, got str"):
        manifest_of(Wrong)
