"""Conformance of agents' endpoints: scenarios in which captured tokens go wrong, for any endpoint.

An adapter (``adapter``) opens episodes of the endpoint under test in front of a scripted policy (``policy``), whose
record of what it read and wrote is the truth. ``scenarios`` play agents by plain HTTP (``client``), ``checks`` compare
the captured trace with the record, and ``running`` makes a report. ``ours`` is the adapter of this package.
"""

from .adapter import CapturedRow as CapturedRow
from .adapter import CapturedTrace as CapturedTrace
from .adapter import EndpointUnderTest as EndpointUnderTest
from .adapter import OpenEpisode as OpenEpisode
from .policy import SampledAnswer as SampledAnswer
from .policy import ScriptedPolicy as ScriptedPolicy
from .running import ScenarioResult as ScenarioResult
from .running import report as report
from .running import run_scenarios as run_scenarios
