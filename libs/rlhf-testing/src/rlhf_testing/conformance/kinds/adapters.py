"""Checks of model adapters (``contracts.ModelAdapter``) on a tiny Transformers model."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rlhf_core.capabilities import SERVES_ADAPTERS, SERVES_FOUR_BITS, SHARES_WEIGHTS

from ..comparing import assert_equal
from ..subject import Subject, checks_in, traits
from ..tiny_policy import tiny_model

SEED = 5
TOKENS = (torch.arange(16) * 7919 + 3) % 90 + 4
MERGES = 1000


class _Adapted:
    """A tiny model under an adapter, and the base as it is loaded without one."""

    def __init__(self, subject: Subject, folder: Path) -> None:
        self.folder = folder
        self.adapter = subject.make()
        self.loaded = self.load()
        self.model = self.adapter.wrap(self.loaded, SEED)

    def load(self) -> Any:
        from transformers import AutoModelForCausalLM

        options = self.adapter.load_options()
        return AutoModelForCausalLM.from_pretrained(
            self.folder, dtype=torch.float32, **options
        ).eval()

    def trained(self) -> dict[str, Tensor]:
        """Return copies of the trainable parameters."""
        return {n: p.detach().clone() for n, p in self.model.named_parameters() if p.requires_grad}

    def fixed(self) -> dict[str, Tensor]:
        """Return copies of all tensors that are not trained."""
        trained = self.trained()
        state = self.model.state_dict()
        return {n: t.detach().clone() for n, t in state.items() if n not in trained}

    @torch.no_grad()
    def stir(self) -> None:
        """Move the trained parameters, as training would."""
        generator = torch.Generator().manual_seed(1)
        for parameter in self.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))

    def logits(self, model: Any = None) -> Tensor:
        """Return the logits (T, V) of some tokens."""
        with torch.no_grad():
            found: Tensor = (model or self.model)(input_ids=TOKENS[None]).logits[0]
        return found

    def base_logits(self) -> Tensor:
        """Return the base's logits (T, V). Layers that are quantized at loading may compute rightly only when they are
        wrapped, so of these they are those of a new adapter that is switched off."""
        if not self.adapter.load_options():
            return self.logits(self.load())
        new = self.adapter.wrap(self.load(), SEED)
        with self.adapter.disabled(new):
            return self.logits(new)


@contextmanager
def _adapted(subject: Subject) -> Iterator[_Adapted]:
    with tiny_model() as folder:
        yield _Adapted(subject, folder)


def _require_same(actual: Tensor, expected: Tensor, what: str) -> None:
    difference = float((actual - expected).abs().max())
    assert difference == 0.0, f"{what}: other bits, by up to {difference:.4g}"


def _require_unchanged(before: dict[str, Tensor], after: dict[str, Tensor], what: str) -> None:
    assert before.keys() == after.keys(), f"{what}: other tensors than before"
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), f"{what}: {name} was changed"


def _is_merged(subject: Subject) -> bool:
    """True unless the base is one that cannot take anything in, so that no engine gets merged weights."""
    return not {SHARES_WEIGHTS, SERVES_FOUR_BITS} & subject.needs


def _is_served(subject: Subject) -> bool:
    return SERVES_ADAPTERS in subject.needs and _is_merged(subject)


def _is_unpacked(subject: Subject) -> bool:
    return SERVES_FOUR_BITS in subject.needs


def check_the_model_is_changed_in_place(subject: Subject) -> None:
    """``wrap`` returns the Transformers model itself, of which a part is trained and a part is fixed."""
    with _adapted(subject) as case:
        assert case.model is case.loaded, (
            f"wrap returned another object, a {type(case.model).__name__}"
        )
        flags = {parameter.requires_grad for parameter in case.model.parameters()}
        assert flags == {True, False}, "expected trained and fixed parameters, got one kind only"


def check_the_seed_decides_the_first_parameters(subject: Subject) -> None:
    """The same seed gives the same parameters whatever the global random state is, which stays as it was."""
    with tiny_model() as folder:
        found = []
        for state in (1, 2):
            torch.manual_seed(state)
            before = torch.random.get_rng_state()
            found.append(_Adapted(subject, folder).trained())
            drawn = not torch.equal(torch.random.get_rng_state(), before)
            assert not drawn, "wrap drew from the global random state"
        _require_unchanged(found[0], found[1], "two adapters of one seed")


@traits(usual=True)
def check_a_new_adapter_changes_nothing(subject: Subject) -> None:
    """Before its first update the adapted model computes what the base computes."""
    with _adapted(subject) as case:
        assert_equal(case.logits(), case.base_logits(), "logits of a new adapter")


def check_switched_off_it_is_the_base(subject: Subject) -> None:
    """In ``disabled`` the model gives the base's bits, also after updates; after it everything is as it was."""
    with _adapted(subject) as case:
        base = case.base_logits()
        case.stir()
        own, trained = case.logits(), case.trained()
        assert not torch.equal(own, base), "moving the trained parameters changed no logit"
        with case.adapter.disabled(case.model):
            _require_same(case.logits(), base, "logits while switched off")
        _require_same(case.logits(), own, "logits after it was switched on again")
        _require_unchanged(trained, case.trained(), "switching off and on")


def check_training_moves_every_trained_parameter(subject: Subject) -> None:
    """Within two updates every trained parameter moves, and no other tensor of the model does."""
    with _adapted(subject) as case:
        before, fixed = case.trained(), case.fixed()
        trained = [p for p in case.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.0)
        for update in range(2):
            with case.adapter.training(case.model, update):
                logits = case.model(input_ids=TOKENS[None]).logits[0]
                logits[:-1].log_softmax(-1).gather(1, TOKENS[1:, None]).mean().neg().backward()
            optimizer.step()
            optimizer.zero_grad()
        still = [n for n, tensor in case.trained().items() if torch.equal(tensor, before[n])]
        assert not still, f"{len(still)} trained parameters did not move; the first is {still[0]}"
        _require_unchanged(fixed, case.fixed(), "training")


def check_training_follows_its_seed(subject: Subject) -> None:
    """In ``training`` equal seeds give equal outputs; outside of it nothing is random, and the global state is kept."""
    with _adapted(subject) as case:
        case.stir()
        outside, state = case.logits(), torch.random.get_rng_state()
        inside = []
        for _ in range(2):
            with case.adapter.training(case.model, 3):
                inside.append(case.logits())
        _require_same(inside[1], inside[0], "logits in training with one seed")
        assert torch.equal(torch.random.get_rng_state(), state), (
            "the global random state was changed"
        )
        _require_same(case.logits(), outside, "logits after training")


@traits(_is_merged)
def check_merged_weights_are_the_adapted_model(subject: Subject) -> None:
    """Merged weights have the plain model's names, and compute what the adapted model computes."""
    with _adapted(subject) as case:
        case.stir()
        plain = case.load()
        merged = dict(case.adapter.merged_weights(case.model))
        expected = set(plain.state_dict())
        assert set(merged) == expected, (
            f"other names than the plain model's, such as {min(set(merged) ^ expected)}"
        )
        plain.load_state_dict(merged)
        assert_equal(case.logits(plain), case.logits(), "logits of merged weights")


@traits(_is_merged)
def check_merging_leaves_the_base(subject: Subject) -> None:
    """Merging a thousand times changes no bit of the model."""
    with _adapted(subject) as case:
        case.stir()
        before = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
        for _ in range(MERGES):
            for _ in case.adapter.merged_weights(case.model):
                pass
        _require_unchanged(before, dict(case.model.state_dict()), f"merging {MERGES} times")


@traits(_is_served)
def check_factors_make_the_difference(subject: Subject) -> None:
    """A weight plus the product of its module's factors is the merged one; weights without factors are the base's."""
    with _adapted(subject) as case:
        case.stir()
        rank = case.adapter.served_rank
        assert rank is not None, f"needs {SERVES_ADAPTERS!r}, but served_rank is None"
        made = {name: t.clone() for name, t in case.load().state_dict().items()}
        factors = dict(case.adapter.factors(case.model))
        for module in sorted({name.rpartition(".")[0] for name in factors}):
            a, b = factors[f"{module}.lora_A"], factors[f"{module}.lora_B"]
            assert (a.shape[0], b.shape[1]) == (rank, rank), (
                f"{module}: factors {tuple(a.shape)} and {tuple(b.shape)}; expected rank {rank}"
            )
            made[f"{module}.weight"] += b @ a
        for name, tensor in case.adapter.merged_weights(case.model):
            assert_equal(made[name], tensor, f"{name} by factors")


@traits(_is_unpacked)
def check_unpacked_weights_are_the_base(subject: Subject) -> None:
    """The plain model with the unpacked weights computes what the base computes; with the factors' products added, what
    the adapted model computes."""
    from transformers import AutoModelForCausalLM

    with _adapted(subject) as case:
        case.stir()
        plain = AutoModelForCausalLM.from_pretrained(case.folder, dtype=torch.float32).eval()
        state = plain.state_dict()
        unpacked = dict(case.adapter.unpacked_weights(case.model))
        assert unpacked, "unpacked_weights yields nothing, but load_options quantize"
        for name, weight in unpacked.items():
            assert name in state, f"unpacked_weights yields {name}, which the plain model lacks"
            state[name].copy_(weight)
        assert_equal(case.logits(plain), case.base_logits(), "logits of the unpacked base")
        factors = dict(case.adapter.factors(case.model))
        for module in {name.rpartition(".")[0] for name in factors}:
            product = factors[f"{module}.lora_B"] @ factors[f"{module}.lora_A"]
            state[f"{module}.weight"].add_(product)
        assert_equal(case.logits(plain), case.logits(), "logits of the unpacked base with factors")


@traits(_is_merged)
def check_peft_loads_what_is_saved(subject: Subject) -> None:
    """A saved folder that has PEFT's settings is one of PEFT, which loads it to the same outputs."""
    with _adapted(subject) as case, tempfile.TemporaryDirectory() as folder:
        case.stir()
        case.adapter.save(case.model, folder)
        assert any(Path(folder).iterdir()), "save wrote no file"
        if not (Path(folder) / "adapter_config.json").exists():
            return
        from peft import PeftModel

        loaded = PeftModel.from_pretrained(case.load(), folder).eval()
        assert_equal(case.logits(loaded), case.logits(), "logits by PEFT")


CHECKS = checks_in(__name__)
