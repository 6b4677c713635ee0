from rlhf_tools.docstrings import described


def test_text_and_arguments_are_taken_apart():
    found = described(
        """Find a thing.
        It is quick.

        A second paragraph,
        on two lines.

        Args:
            name: what it is called: any text
            size (int): how large,
                in meters

                and more
            empty:

        Returns:
            thing: it
        """
    )

    assert found.text == "Find a thing. It is quick.\nA second paragraph, on two lines."
    assert found.arguments == {
        "name": "what it is called: any text",
        "size": "how large, in meters and more",
        "empty": "",
    }


def test_no_docstring_has_no_text():
    assert described(None).text == described("  ").text == ""
    assert described(None).arguments == {}


def test_a_docstring_of_arguments_alone_has_no_text():
    found = described("Args:\n    x: a number")

    assert (found.text, found.arguments) == ("", {"x": "a number"})
