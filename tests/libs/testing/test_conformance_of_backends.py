"""Training backends that break one promise each, and what catches them. Most are the torch backend with a bug."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf_core.capabilities import KEEPS_REFERENCE
from rlhf_core.contracts import TopTokens
from rlhf_core.contracts.backend import ScheduleSpec
from rlhf_plugin_local.config import TorchBackendConfig
from rlhf_plugin_local.torch_backend import TorchBackend
from rlhf_testing.conformance import applying, run_checks, subject
from rlhf_testing.conformance.subject import outcome_of
from rlhf_testing.conformance.tiny_policy import SGD, TWO_RATES

BACKENDS = "rlhf_train_backends"


class Right(TorchBackend):
    def __init__(self):
        super().__init__(TorchBackendConfig(device="cpu"))


def ignoring(**settings):
    """A backend that takes some of a role's settings for their defaults."""

    class Ignores(Right):
        def setup(self, spec, plugins):
            super().setup(replace(spec, **settings), plugins)

    return Ignores


class ClipsEachTensor(Right):
    def setup(self, spec, plugins):
        super().setup(replace(spec, max_grad_norm=None), plugins)
        limit = spec.max_grad_norm
        if limit is not None:
            for _, parameter in self.module().named_parameters():
                parameter.register_hook(lambda grad: grad * min(1.0, limit / float(grad.norm())))


class SchedulesWhatWasDone(Right):
    """A skipped update does not count, so that the schedule stands still."""

    def train_step(self, batch, plan):
        outcome = super().train_step(batch, plan)
        self._updater.updates -= int(outcome.metrics["train/skipped_updates"].value())
        return outcome


class SchedulesAnew(Right):
    def load(self, folder):
        super().load(folder)
        self._updater.updates = 0


class OneRate(Right):
    def setup(self, spec, plugins):
        given = SGD if spec.optimizer == TWO_RATES else spec.optimizer
        super().setup(replace(spec, optimizer=given), plugins)


class Ascending(Right):
    def top_tokens(self, batch, k):
        top = super().top_tokens(batch, k)
        turned = (column[:, ::-1].copy() for column in (top.token_ids, top.logprobs))
        return TopTokens(**dict(zip(("token_ids", "logprobs"), turned, strict=True)))


class OwnOldLogprobs(Right):
    def train_step(self, batch, plan):
        return super().train_step(batch, replace(plan, on_policy=True))


class OldLogprobsOfOtherRows(Right):
    def train_step(self, batch, plan):
        columns = {
            name: np.roll(one, name == "old_logprobs") for name, one in batch.columns.items()
        }
        return super().train_step(replace(batch, columns=columns), plan)


class CutsPairs(Right):
    """Does a pass of each row by itself."""

    def setup(self, spec, plugins):
        super().setup(spec, plugins)
        if self._spec.max_tokens_per_micro_batch == 1:
            self._objective = replace(self._objective, rows_per_unit=1)


class NoSupervisedRows(Right):
    def train_step(self, batch, plan):
        return super().train_step(replace(batch, supervised=None), plan)


class WithDropout(Right):
    def train_step(self, batch, plan):
        for _, module in self.module().named_modules():
            if hasattr(module, "o_proj"):
                module.o_proj.register_forward_pre_hook(
                    lambda module, inputs: torch.nn.functional.dropout(inputs[0], 0.5)
                )
        return super().train_step(batch, plan)


class FirstDigest(Right):
    known = None

    def checksum(self):
        self.known = self.known or super().checksum()
        return self.known


class OldModule(Right):
    """The engine that computes with the module gets the weights from before the update."""

    def setup(self, spec, plugins):
        super().setup(spec, plugins)
        self.served = copy.deepcopy(super().module())

    def module(self):
        return self.served


class StaysTheStart(Right):
    """The reference is the model at the start, all along."""

    def train_step(self, batch, plan):
        return super().train_step(batch, replace(plan, syncs_reference=False))


class LeavesTheReferenceIn(Right):
    """The policy computes with the reference's weights from the first pass of the reference on."""

    def base_logprobs(self, batch):
        self.held = self._holding_reference()
        self.held.__enter__()
        return self.logprobs(batch)


class ForgetsTheReference(Right):
    def load(self, folder):
        super().load(folder)
        self._updater.sync_reference()


class TakesAnOptimizer(Right):
    def setup(self, spec, plugins):
        plugins.build(spec.optimizer)
        super().setup(spec, plugins)


class Rounding:
    """Weights in bfloat16 without copies in float32."""

    weights = None

    def setup(self, spec, plugins):
        self.weights = torch.linspace(-1.0, 1.0, 1000).bfloat16().view(10, 100)

    def train_step(self, batch, plan):
        self.weights = (self.weights.float() + 0.01 * plan.lr_factor).bfloat16()

    def buckets(self):
        yield {"weights": self.weights}

    def close(self):
        pass


class Values:
    """Values are a function of the token ``late`` behind the one before the action."""

    late = 0

    def setup(self, spec, plugins):
        pass

    train_step = setup

    def close(self):
        pass

    def values(self, batch):
        places = np.flatnonzero(batch.action_mask) - 1 + self.late
        return batch.token_ids[places].astype(np.float32)


class LateValues(Values):
    late = 1


class EarlyValues(Values):
    late = -1


def status_of(make, name):
    tried = replace(subject(make), provides=frozenset({KEEPS_REFERENCE}))
    (check,) = [check for check in applying(BACKENDS, tried) if check.name == name]
    return outcome_of(check, tried, BACKENDS, {}).status


@pytest.mark.slow
def test_a_backend_without_a_fault_passes():
    assert [outcome for outcome in run_checks(BACKENDS, Right) if outcome.failed] == []


@pytest.mark.parametrize(
    ("wrong", "check"),
    [
        (ignoring(max_grad_norm=None), "check_gradients_are_clipped"),
        (ClipsEachTensor, "check_gradients_are_clipped"),
        (ignoring(schedule=ScheduleSpec()), "check_the_schedule_goes_on"),
        (SchedulesWhatWasDone, "check_the_schedule_goes_on"),
        (SchedulesAnew, "check_the_schedule_goes_on"),
        (OneRate, "check_groups_keep_their_rates"),
        (ignoring(vocabulary=None), "check_tokens_beyond_the_vocabulary_have_no_probability"),
        (ignoring(top_temperature=None), "check_the_most_probable_tokens"),
        (Ascending, "check_the_most_probable_tokens"),
        (ignoring(embedding_rows=None), "check_embeddings_grow"),
        (ignoring(embedding_noise=0.0), "check_noise_of_embeddings_is_of_updates_alone"),
        (ignoring(ema_decay=None), "check_a_moving_average_is_exported"),
        (StaysTheStart, "check_a_reference_follows_the_policy"),
        (ignoring(reference_sync=1.0), "check_a_reference_follows_the_policy"),
        (LeavesTheReferenceIn, "check_a_reference_follows_the_policy"),
        (ForgetsTheReference, "check_a_reference_follows_the_policy"),
        (TakesAnOptimizer, "check_a_role_without_an_objective_scores"),
        (OwnOldLogprobs, "check_old_log_probs_are_those_of_the_batch"),
        (OldLogprobsOfOtherRows, "check_old_log_probs_are_those_of_the_batch"),
        (CutsPairs, "check_pairs_stay_together"),
        (ignoring(max_tokens_per_micro_batch=16384), "check_micro_batches_do_not_matter"),
        (NoSupervisedRows, "check_supervised_rows_are_learned"),
        (WithDropout, "check_dropout_stays_off"),
        (FirstDigest, "check_the_digest_is_of_the_weights"),
        (OldModule, "check_the_digest_is_of_the_weights"),
        (Rounding, "check_small_updates_add_up"),
        (LateValues, "check_values_are_of_the_states_before_actions"),
        (EarlyValues, "check_values_are_of_the_states_before_actions"),
    ],
)
def test_a_fault_is_caught(wrong, check):
    assert status_of(wrong, check) == "FAILED"


def test_values_of_the_states_before_actions_pass():
    assert status_of(Values, "check_values_are_of_the_states_before_actions") == "ok"
