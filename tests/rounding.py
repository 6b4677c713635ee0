"""Bounds of differences in float32 that come from the arithmetic, so that they hold on every processor.

In which order a sum is taken depends on the processor's vectors, on the library and on the number of threads. A bound
that is read off one machine says nothing of the next one; where the code can compute in float64, compare there instead.
"""

import math

UNIT = 2.0**-24
"""Largest relative error of one operation in float32."""


def rounding(operations: int, magnitude: float) -> float:
    """Return a bound of the difference of two ways to compute a number in float32.

    A rounding error is spread evenly over one unit to either side, with the standard deviation ``UNIT / sqrt(3)``.
    Errors of operations one after the other add up like a random walk, those of the two ways too, and the bound is
    three standard deviations of that: ``3 * sqrt(2 * operations / 3) * UNIT * magnitude``.

    Args:
        operations: roundings one after the other on the way to the number: for a sum the number of its terms, for sums
            of sums all of them together.
        magnitude: the sum of the absolute values of the number's terms. It may be far above the number.

    Source: Higham and Mary 2019, "A new approach to probabilistic rounding error analysis", theorem 2.4.
    """
    return 3.0 * math.sqrt(2.0 * operations / 3.0) * UNIT * magnitude
