"""From an outcome to files: settings that are worth stating, a check by the command's own rules, and the texts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlhf_cli.runs import read_options, read_run, training_command
from rlhf_core import RLHFError
from rlhf_core.contracts import PlansPlacement
from rlhf_core.plugins import Plugins

from .document import MigrationReport, report_of, toml
from .ours import OurDefaults
from .table.outcome import OptionSetting, Outcome, as_default

_ROLES = {"rm": "reward_model", "prm": "reward_model"}
"""Command that learns from examples -> the role that it trains, where that is not the policy."""

Migrate = Callable[[str], Outcome]
"""Function from the path of the file with reward functions, if one is needed, to an outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One run of another framework as files of this one."""

    text: str
    """The configuration, with the report at its end."""
    report: MigrationReport
    files: dict[str, str]
    """Text of each further file, by its path."""


def migrated(
    migrate: Migrate, adapter: str, origin: str, framework: str, plugins: Plugins
) -> Migration:
    """Return the migration of one run.

    Args:
        adapter: path of the file with reward functions, if one is needed.
        origin: the input, in words.
        framework: name of the other framework.
    """
    outcome = migrate(adapter)
    report = report_of(outcome, origin, refusal(migrate, plugins))
    settings = worth_stating(outcome, framework, OurDefaults(outcome.command, plugins))
    head = (
        f"{origin}, by rlhf migrate. Run it with: rlhf {outcome.command} -c FILE. "
        "The report of every option is at the end."
    )
    return Migration(text=toml(settings, report, head), report=report, files=outcome.files)


def worth_stating(outcome: Outcome, framework: str, ours: OurDefaults) -> dict[str, OptionSetting]:
    """Return the settings without those that nobody wrote and that are defaults here, too."""
    found: dict[str, OptionSetting] = {}
    for path, setting in outcome.settings.items():
        written = outcome.source.given(*setting.sources)
        if written or not setting.sources:
            found[path] = setting
        elif not ours.has(path, setting.value):
            found[path] = as_default(setting, framework)
    return found


def refusal(migrate: Migrate, plugins: Plugins) -> str:
    """Return why the command would refuse the configuration; empty if it would not.

    Files of data and models are not looked for: they may be on another machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        outcome = migrate(str(Path(folder, "reward.py")))
        for path, text in outcome.files.items():
            Path(path).write_text(text, encoding="utf-8")
        file = Path(folder, "run.toml")
        report = MigrationReport(
            origin="", command=outcome.command, rows=(), defaults=(), warnings=()
        )
        file.write_text(toml(outcome.settings, report, ""), encoding="utf-8")
        try:
            _read(outcome.command, ["-c", str(file)], plugins)
        except RLHFError as error:
            return str(error).replace(f"{file}: ", "").replace(f"{folder}/", "")
    return ""


def _read(command: str, words: list[str], plugins: Plugins) -> None:
    """Check a configuration as far as is possible without its files.

    Raises:
        ConfigError: the configuration is wrong.
    """
    if command == "train":
        read_run(words, plugins)  # It looks at the placement, too.
        return
    resolved = read_options(training_command(command, plugins), words, plugins)
    runtime = resolved.one("runtime.name").options
    if isinstance(runtime, PlansPlacement):
        runtime.placement([_ROLES.get(command, "policy")], has_engine=False)
