"""``python -m rlhf_plugin_endpoint.conformance``: the scenarios against this package's own endpoint."""

from __future__ import annotations

import sys

from .ours import OwnEndpoint
from .running import report, run_scenarios

if __name__ == "__main__":
    endpoint = OwnEndpoint()
    results = run_scenarios(endpoint)
    print(report(endpoint, results))
    sys.exit(any(each.problem is not None for each in results))
