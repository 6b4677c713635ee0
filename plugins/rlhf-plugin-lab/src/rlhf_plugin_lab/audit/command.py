"""Command ``rlhf audit``: which recorded log-probs differ from a plain forward, and which cause explains it."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_core import ConfigError
from rlhf_core.lazy import np, torch

from ..flags import FlagParser
from ..paper.contents import CONFIG, require_run
from ..recorded.options import read_options
from ..recorded.problems import Problems
from .forward import Reading, logprobs_of, with_dtype
from .hypotheses import HYPOTHESES, Case
from .sequences import SIDES, read_sequences
from .verdict import PRECISION, Verdict, judge

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BF16_MARGIN = 3.0
"""Gap in bfloat16, as a multiple of the one of a bfloat16 forward: another kernel rounds otherwise."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's flags."""
    own = FlagParser(
        prog="rlhf audit",
        description="Recompute the recorded log-probs of sampler and trainer by a plain forward in float32, and name "
        "what explains a gap. Exit code 0: no gap beyond the precision, 1: a gap.",
        allow_abbrev=False,
    )
    own.add_argument("run", type=Path, metavar="RUN", help="run folder with tokens (token_files)")
    own.add_argument("--step", type=int, default=1, help="recorded step (1)")
    own.add_argument("--model", type=Path, help="weights at that step; step 1 has model.path")
    own.add_argument(
        "--other", type=Path, nargs="*", default=[], help="other weights that a side may have had"
    )
    own.add_argument("--dtype", choices=("float32", "bfloat16"), help="of the run (model.dtype)")
    own.add_argument("--samples", type=int, default=16, help="sequences that are recomputed (16)")
    own.add_argument("--json", action="store_true", dest="as_json", help="print JSON")
    return own


def main(arguments: Sequence[str]) -> int:
    """Print the verdict on each side, and return the exit code: 0 for no gap, 1 for one.

    Raises:
        ConfigError: a flag is wrong, tokens or a model are missing, or the run samples as no reading does.
    """
    own = parser().parse_args(list(arguments))
    require_run(own.run, "rlhf audit")
    if own.samples < 1:
        raise ConfigError(f"rlhf audit: --samples is {own.samples}; expected 1 or more")
    verdicts = audit(own)
    if own.as_json:
        print(json.dumps([dataclasses.asdict(each) for each in verdicts], indent=2))
    else:
        for each in verdicts:
            print(_line(each))
    return 0 if all(each.healthy for each in verdicts) else 1


def audit(own: argparse.Namespace) -> list[Verdict]:
    """Return the verdicts on the sides that are recorded."""
    options = read_options(own.run / CONFIG, Problems()).values
    temperature, top_p = _sampling(own.run, options)
    folder = own.model or Path(options.get("model.path", ""))
    if own.step > 1 and own.model is None:
        raise ConfigError(
            f"rlhf audit: step {own.step} was sampled by trained weights; name their folder with --model"
        )
    sequences = read_sequences(own.run, own.step, None if own.model else 0, own.samples)
    model = _load(folder)
    case = Case(
        plain=Reading(model=model, temperature=temperature),
        sequences=sequences,
        special=_special(model),
        others={str(path): _load(path) for path in own.other},
    )
    dtype = own.dtype or options.get("model.dtype", "float32")
    verdicts = []
    for side in SIDES:
        if not any(np.isfinite(each.logprobs.get(side, np.nan)).any() for each in sequences):
            continue
        # Only the sampler's log-probs are those within its top-p set; the trainer's are of all tokens.
        plain = dataclasses.replace(case.plain, top_p=top_p if side == "sampler" else 1.0)
        of_side = dataclasses.replace(case, plain=plain)
        verdicts.append(judge(side, of_side, _allowed(of_side, dtype)))
    if not verdicts:
        raise ConfigError(
            f"rlhf audit {own.run}: expected log-probs of the sampler or the trainer, and none is recorded. Record "
            "both: --rollout.compared_share 1 --algo.loss.old_logprobs recompute --observers.use token_files"
        )
    return verdicts


def _allowed(case: Case, dtype: str) -> float:
    """Return the gap that a dtype explains: in bfloat16 a multiple of that of a plain forward in it."""
    if dtype != "bfloat16":
        return PRECISION
    low = dataclasses.replace(case.plain, model=with_dtype(case.plain.model, torch.bfloat16))
    gaps = [
        np.abs(logprobs_of(low, each) - logprobs_of(case.plain, each))[each.action_mask]
        for each in case.sequences
    ]
    return max(PRECISION, _BF16_MARGIN * float(np.mean(np.concatenate(gaps))))


def _sampling(run: Path, options: Mapping[str, str]) -> tuple[float, float]:
    """Return temperature and top-p of a run, and refuse what no reading recomputes."""
    for name, off in (("top_k", ("-1", "0")), ("min_p", ("0", "0.0"))):
        if options.get(f"rollout.{name}", off[0]) not in off:
            raise ConfigError(
                f"rlhf audit {run}: rollout.{name} is {options[f'rollout.{name}']}; expected it to be off, as an "
                "audit does not recompute it. Record a step without it"
            )
    return float(options.get("rollout.temperature", "1")), float(options.get("rollout.top_p", "1"))


def _load(folder: Path) -> PreTrainedModel:
    """Return a folder's text model in float32."""
    from transformers import AutoConfig, AutoModelForCausalLM

    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"rlhf audit: no model in {str(folder)!r}; expected a folder with config.json. Name it with --model"
        )
    if getattr(AutoConfig.from_pretrained(folder), "vision_config", None) is not None:
        raise ConfigError(
            f"rlhf audit: {folder} is a model of images; expected one of text, as pixels are not recorded"
        )
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def _special(model: PreTrainedModel) -> dict[str, int]:
    ids = {name: getattr(model.config, f"{name}_token_id", None) for name in ("pad", "eos")}
    return {name: value for name, value in ids.items() if isinstance(value, int)}


def _line(verdict: Verdict) -> str:
    head = f"{verdict.side}: gap {verdict.gap:.3g} nats per action"
    if verdict.healthy:
        return f"{head}, healthy (within {verdict.allowed:.3g})"
    where = f"\n  where: {verdict.pattern}"
    if verdict.cause:
        return f"{head}; {verdict.cause}: {verdict.detail}, which leaves {verdict.left:.3g}{where}"
    return f"{head}; none of {', '.join(HYPOTHESES)} explains it (best leaves {verdict.left:.3g}){where}"
