"""The quickstart's reward."""


def score(response: str, answer: str, truncated: bool) -> float:
    """One point for each digit that stands in its place; half of that if the answer did not end where it should.

    The full number of points means: the right digits, all of them, and then the end.
    """
    right = sum(written == digit for written, digit in zip(response, answer, strict=False))
    return right / 2 if truncated or len(response) > len(answer) else float(right)
