"""Whose weights the engine computes with: the trainer's own tensors, or a copy that follows them."""

from __future__ import annotations

import copy

import torch

from rlhf_core import CapabilityError, RolloutError, plugins
from rlhf_core.contracts import EngineSpec, WeightSource
from rlhf_torch.models.loading import load_causal_lm
from rlhf_torch.models.modeling import CausalLM
from rlhf_torch.models.vision_lm import VisionLM
from rlhf_torch.vision.pictures import PictureReader, open_reader
from rlhf_weights import weights_digest

from .config import EmbeddedEngineConfig
from .precast import Precast


class ServedWeights:
    """The model that is served.

    ``lm`` is ``source.module()`` where that is a ``CausalLM`` and the options allow it; else the model of the spec,
    with the source's buckets copied into it. ``computing`` is what tokens are computed with: ``lm`` itself, or its
    ``Precast`` where it computes below its weights' precision or beside training.

    Args:
        beside_training: the trainer goes on changing its weights while tokens are computed, with those of the last
            ``update``.
    """

    def __init__(
        self,
        spec: EngineSpec,
        config: EmbeddedEngineConfig,
        source: WeightSource,
        *,
        beside_training: bool = False,
    ) -> None:
        module = source.module()
        self._may_share = config.weights == "shared"
        self._is_trainers = self._may_share and isinstance(module, CausalLM)
        """Whether ``lm`` is the trainer's module."""
        self.is_shared = self._is_trainers and not beside_training
        """Whether tokens are computed with tensors that training changes."""
        if self._is_trainers:
            assert isinstance(module, CausalLM)
            self.lm = module
        elif spec.adapter_rank is not None:
            raise CapabilityError(
                _no_factors(may_share=self._may_share), code="adapter/not-servable"
            )
        elif isinstance(module, VisionLM):
            self.lm = copy.deepcopy(module).to(device_of(config, module))
        else:
            compute_dtype = module.compute_dtype if isinstance(module, CausalLM) else None
            lm = load_causal_lm(
                spec.model_path,
                dtype=spec.dtype,
                compute_dtype=compute_dtype,
                trust_remote_code=spec.trust_remote_code,
                reader=_reader(spec),
                rows=spec.embedding_rows,
            )
            self.lm = lm.to(device_of(config, module))
            _copy_buckets(self.lm, source)
        if spec.vocabulary is not None:
            self.lm.never_sample(spec.vocabulary.unused(self.lm.vocab_size))
        self._source = source
        self._precast = _precast(self.lm, config, own=self._is_trainers and beside_training)
        self._note()

    @property
    def computing(self) -> CausalLM:
        return self._precast.lm if self._precast else self.lm

    def checksum(self) -> str:
        """Return the digest of the served weights: those of the source, whose tensors are in use or equal to the cast
        copies that are, or the copy's own."""
        if not self._is_trainers:
            return weights_digest(self.lm.model.state_dict().items())
        if self._precast is not None and not self._precast.is_current():
            return weights_digest(self._precast.lm.model.state_dict().items())
        return weights_digest(pair for bucket in self._source.buckets() for pair in bucket.items())

    def update(self, source: WeightSource) -> None:
        """Take over what ``source`` holds now.

        Raises:
            RolloutError: its names or shapes are not this model's.
        """
        module = source.module()
        if not self._is_trainers:
            _copy_buckets(self.lm, source)
        elif module is not self.lm:
            raise RolloutError(
                "the engine shares the weights of the module that it was started with; the source of this update has "
                + ("another one" if module is not None else "no module in this process"),
                code="engine/other-module",
            )
        self._source = source
        self._follow()

    def catch_up(self) -> bool:
        """Take over a change that nobody announced, such as a checkpoint that was loaded, and return whether there was
        one; nothing is running."""
        changed = self._changed()
        if changed:
            self._follow()
        return changed

    def check_unchanged(self) -> None:
        """Raise if somebody changed the shared tensors without ``update``: versions would be wrong.

        Raises:
            RolloutError: says which option keeps running requests and training apart.
        """
        if self._changed():
            raise RolloutError(
                "the weights changed under running requests, so their tokens would be labeled with the wrong version. "
                "Call pause before training, and update_weights and resume behind it, or set "
                "--engine.embedded.weights copy",
                code="engine/weights-changed",
            )

    def _changed(self) -> bool:
        return [parameter._version for parameter in self._probes] != self._seen

    def _follow(self) -> None:
        if self._precast:
            self._precast.refresh()
        self._note()

    def _note(self) -> None:
        """Remember how often autograd has seen some parameters change: enough to notice an optimizer step."""
        # Changes of tensors that no token is computed with are the trainer's own affair.
        every = list(self.lm.parameters()) if self.is_shared or not self._is_trainers else []
        # Under an adapter the base never changes.
        parameters = [parameter for parameter in every if parameter.requires_grad] or every
        self._probes = parameters[:1] + parameters[-1:]
        self._seen = [parameter._version for parameter in self._probes]


def _reader(spec: EngineSpec) -> PictureReader | None:
    """Return the reader of images of an engine apart from its trainer; None: its requests have none."""
    if spec.vision is None:
        return None
    return open_reader(
        spec.vision, spec.model_path, plugins.load(), trust_remote_code=spec.trust_remote_code
    )


def _no_factors(*, may_share: bool) -> str:
    """Return the error text for an adapter whose factors this engine would have to apply to a copy of its own."""
    wrong, fix = (
        (
            "the trainer's model is in another process",
            "Choose an engine that serves adapters in its own",
        )
        if may_share
        else (
            "--engine.embedded.weights copy",
            "Share the trainer's model: --engine.embedded.weights shared",
        )
    )
    return (
        f"{wrong}: this engine serves an adapter within the trainer's model, or merged into a copy. {fix}, or set "
        "--actor.lora.serve merged (--model.serve merged of rlhf generate and chat)."
    )


@torch.no_grad()
def _copy_buckets(lm: CausalLM, source: WeightSource) -> None:
    state = lm.model.state_dict()
    missing = {tensor.data_ptr() for tensor in state.values()}
    for bucket in source.buckets():
        for name, tensor in bucket.items():
            if name not in state or state[name].shape != tensor.shape:
                expected = tuple(state[name].shape) if name in state else "no such name"
                raise RolloutError(
                    f"weight {name} of shape {tuple(tensor.shape)} does not fit the engine's model ({expected}): "
                    "trainer and engine were started from different models",
                    code="engine/weights-of-other-shape",
                )
            state[name].copy_(tensor)
            missing.discard(state[name].data_ptr())
    # By address: one of two tied names is enough.
    if lacking := [name for name, tensor in state.items() if tensor.data_ptr() in missing]:
        raise RolloutError(
            f"the trainer sent no {lacking[0]} ({len(lacking)} weights are missing)",
            code="engine/weights-missing",
        )


def _precast(lm: CausalLM, config: EmbeddedEngineConfig, *, own: bool) -> Precast | None:
    # Decoding compiles layers of its own: those of the trainer may be compiled otherwise, or recomputed.
    has_own_layers = lm.device.type == "cuda" and config.is_resident(lm.device)
    if has_own_layers or own:
        return Precast(lm, join=has_own_layers, own=own)
    return None if lm.compute_dtype == lm.dtype else Precast(lm)


def device_of(config: EmbeddedEngineConfig, module: torch.nn.Module | None) -> torch.device:
    """Return where tokens are computed: with shared weights where ``module`` has them, else where the options say."""
    if config.weights == "shared" and isinstance(module, CausalLM):
        return module.device
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)
