"""Types of a role's parameters and of its matmuls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Types of a role's parameters and of its matmuls."""

    parameters: str
    """Type of the parameters, ``float32`` or ``bfloat16``."""
    compute: str
    """Type of the matmuls, ``float32`` or ``bfloat16``."""

    @property
    def weight_bytes(self) -> int:
        return 4 if self.parameters == "float32" else 2

    @property
    def compute_bytes(self) -> int:
        """Bytes of one element of a matmul's inputs and output."""
        return 4 if self.compute == "float32" else 2

    @property
    def casts(self) -> bool:
        """Whether weights are cast in every pass (autocast)."""
        return self.parameters != self.compute


BFLOAT16 = Precision(parameters="bfloat16", compute="bfloat16")
