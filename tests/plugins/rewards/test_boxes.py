import pytest

from rlhf_plugin_rewards.boxes import last_boxed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no box", None),
        ("", None),
        (r"\boxed{}", None),
        (r"\boxed{ }", None),
        (r"\boxed{42", None),
        (r"\boxed 42", None),
        (r"so \boxed{42}.", r"$\boxed{42}$"),
        (r"so \boxed {42}.", r"$\boxed{42}$"),
        (r"so \fbox{42}.", r"$\boxed{42}$"),
        (r"\boxed{\frac{1}{2}}", r"$\boxed{\frac{1}{2}}$"),
        (r"\boxed{\{1, 2\}}", r"$\boxed{\{1, 2\}}$"),
        (r"\boxed{\{1}", r"$\boxed{\{1}$"),
        (r"\boxed{41} wait, no: \boxed{42}", r"$\boxed{42}$"),
        (r"\boxed{41}. And \boxed{42}", r"$\boxed{42}$"),
        (r"\boxed{41} android \boxed{42}", r"$\boxed{42}$"),
        (r"\boxed{42}, as \boxed{} asks", r"$\boxed{42}$"),
        (r"\boxed{42} and \boxed{4", r"$\boxed{42}$"),
        (r"\boxed{1 = \boxed{2}}", r"$\boxed{1 = \boxed{2}}$"),
        (r"\boxed{ 1 = \boxed{2}", r"$\boxed{2}$"),
        (r"} { \boxed{3}", r"$\boxed{3}$"),
        (r"\boxed{1} and \boxed{2}", r"\boxed{1}, \boxed{2}"),
        (r"$\boxed{1}$, $\boxed{2}$, and $\boxed{3}$", r"\boxed{1}, \boxed{2}, \boxed{3}"),
        (r"\(\boxed{1}\) or \[\boxed{2}\]", r"\boxed{1}, \boxed{2}"),
        (r"\boxed{0} no. \boxed{1}, \boxed{2}", r"\boxed{1}, \boxed{2}"),
        (r"$\boxed{50}\%$", r"$\boxed{50}$%"),
        (r"$\boxed{50}$ percent", r"$\boxed{50}$%"),
        (r"$\boxed{50}$ percents", r"$\boxed{50}$"),
    ],
)
def test_the_last_box_is_the_answer(text, expected):
    assert last_boxed(text) == expected


def test_a_box_that_is_opened_again_and_again_costs_no_more_than_its_length():
    """A loop of a model: reading on from each opening to the end would take its square, many minutes."""
    assert last_boxed(r"\boxed{" * 200_000 + "1}") == r"$\boxed{1}$"
