"""``python -m tests.mutants``: print each bug with what caught it; exit code 1 if one survives."""

from __future__ import annotations

import sys

from .running import MUTANTS, judge, load


def main() -> int:
    plugins, survivors = load(), 0
    for number, mutant in enumerate(MUTANTS, 1):
        verdict = judge(mutant, plugins)
        survivors += not verdict.caught_by
        where = mutant.target or f"wrapped {mutant.component}"
        print(f"{number:2}. {mutant.bug}\n    source    {mutant.source}\n    injected  {where}")
        if verdict.caught_by:
            others = len(verdict.caught_by) - 1
            more = f" and {others} more" if others else ""
            print(f"    caught by {verdict.caught_by[0]}{more}: {verdict.reason[:110]}", flush=True)
        else:
            print("    SURVIVED", flush=True)
    print(f"{len(MUTANTS) - survivors} of {len(MUTANTS)} caught")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
