"""The quickstart's reward."""


def score(response: str, answer: str, truncated: bool) -> float:
    """Two points for each digit that stands in its place; one if the answer did not end where it should.

    The full number of points means: the right digits, all of them, and then the end.
    """
    right = sum(written == digit for written, digit in zip(response, answer, strict=False))
    ended = not truncated and len(response) <= len(answer)
    return 2.0 * right if ended else 1.0 * right
