"""The quickstart's reward from a sandbox that crashes for one sample in fifty: it then gives 0 and says so."""

import runpy
import zlib
from pathlib import Path

QUICKSTART = Path(__file__).parent.parent / "examples/reverse_digits/reward.py"
points = runpy.run_path(str(QUICKSTART))["score"]


def score(response: str, answer: str, truncated: bool, uid: str) -> dict[str, float]:
    """Same points as the quickstart; which samples crash is a function of their names."""
    if zlib.crc32(uid.encode()) % 50 == 0:
        return {"reward": 0.0, "error": 1.0}
    return {"reward": points(response, answer, truncated), "error": 0.0}
