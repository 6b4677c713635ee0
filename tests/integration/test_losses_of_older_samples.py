"""Which losses train on samples of an older policy: what each declares is measured, and gpg is refused."""

import pytest
import torch

from rlhf_cli.train import DEFAULTS
from rlhf_config import parse_flags, read_toml, resolve
from rlhf_core import ConfigError
from rlhf_core import plugins as plugin_loader
from rlhf_testing.conformance.loss_inputs import loss_case, loss_inputs, prepared, total
from rlhf_testing.errors import has_code

PLUGINS = plugin_loader.load("")
LOSSES = list(PLUGINS.registries["rlhf_policy_losses"])
RUN = ["--model", "m", "--data", "d.jsonl", "--reward", "exact_match"]
AHEAD = ["--rollout.max_staleness", "2"]
# Right whoever wrote the sample, so without a ratio: given responses.
IMITATES = {"sft"}


def gradient(entry, case):
    config = entry.component.config()
    needs = entry.component.needs | config.needed_by_options()
    loss, provides = entry.build(config), entry.component.provides
    case = prepared(loss, case, provides, needs)
    inputs = loss_inputs(case, needs, provides, dtype=torch.float64, gradient=True)
    (found,) = torch.autograd.grad(total(loss(inputs), case.action_mask), [inputs.policy_logprobs])
    return found


@pytest.mark.parametrize("entry", LOSSES, ids=lambda entry: entry.name)
def test_a_loss_provides_off_policy_where_its_gradient_depends_on_who_wrote_the_token(entry):
    near = loss_case(drift=0.02)
    changed = False
    for name in ("old_logprobs", "rollout_logprobs"):
        older = near.columns[name] - 0.05 * near.columns["entropy"]
        difference = gradient(entry, near.with_columns(**{name: older})) - gradient(entry, near)
        changed |= bool(difference.abs().max() > 1e-5)

    declared = "off_policy" in entry.component.provides
    assert declared == (changed or entry.name in IMITATES)


def resolved(*words):
    return resolve([read_toml(DEFAULTS, defaults=True), parse_flags([*RUN, *words])], PLUGINS)


def test_gpg_takes_stale_samples_with_a_correction_only():
    with pytest.raises(
        ConfigError,
        match=r"(?s)--loss gpg: nothing would weigh.*kind tis",
        check=has_code("config/stale-samples-unweighed"),
    ):
        resolved(*AHEAD, "--loss", "gpg")

    assert resolved(*AHEAD, "--loss", "gpg", "--algo.correction.kind", "tis").cautions == ()


@pytest.mark.parametrize("entry", LOSSES, ids=lambda entry: entry.name)
def test_every_other_loss_takes_stale_samples(entry):
    if entry.name in {"gpg", *IMITATES}:
        return
    teacher = ["--algo.teacher.path", "t"] if entry.name == "distill" else []

    resolved(*AHEAD, "--loss", entry.name, *teacher)
