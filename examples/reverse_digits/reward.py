"""The quickstart's reward."""


def score(response: str, answer: str, truncated: bool) -> float:
    """Share of the digits that stand in their place; 1.0 only for the right digits, all of them, and then the end.

    Characters too many count as wrong ones, and so does an end that was not written.
    """
    right = sum(written == digit for written, digit in zip(response, answer, strict=False))
    return right / max(len(answer), len(response) + truncated)
