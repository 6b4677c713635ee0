"""``python -m tests.mutants``: print each bug with what caught it; exit code 1 if one survives.

Names of hooks behind it choose the bugs of these kinds of components: ``python -m tests.mutants rlhf_reward_shapers``.
"""

from __future__ import annotations

import sys

from .running import MUTANTS, judge, load


def main(hooks: list[str]) -> int:
    plugins, survivors = load(), 0
    chosen = [mutant for mutant in MUTANTS if not hooks or mutant.hook in hooks]
    for number, mutant in enumerate(chosen, 1):
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
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
