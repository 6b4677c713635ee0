"""Conformance of agents' endpoints: scenarios in which captured tokens go wrong, for any endpoint.

An adapter (``adapter``) opens episodes of the endpoint under test in front of a scripted policy (``policy``), whose
record of what it read and wrote is the truth. ``scenarios`` play agents by plain HTTP (``client``), ``checks`` compare
the captured trace with the record, and ``running`` makes a report. ``ours`` is the adapter of this package.
"""

from .adapter import CapturedRow, CapturedTrace, EndpointUnderTest, OpenEpisode
from .policy import SampledAnswer, ScriptedPolicy
from .running import ScenarioResult, report, run_scenarios

__all__ = [
    "CapturedRow",
    "CapturedTrace",
    "EndpointUnderTest",
    "OpenEpisode",
    "SampledAnswer",
    "ScenarioResult",
    "ScriptedPolicy",
    "report",
    "run_scenarios",
]
