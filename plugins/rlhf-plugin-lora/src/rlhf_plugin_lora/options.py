"""Options that all adapters of this plugin have."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from rlhf_core import Config, ConfigError

if TYPE_CHECKING:
    from rlhf_torch.adapters.folder import AdapterFolder

RANK = 16
"""Rank of an adapter that starts over, where no option says another one."""


class LowRankOptions(Config):
    """A product of two thin matrices beside each adapted weight: W + scaling * B A."""

    has_magnitudes: ClassVar[bool] = False
    """Whether the lengths of rows are trained too."""

    init_from: str | None = Field(
        None,
        description="PEFT folder to continue from, such as an earlier export: it gives rank, alpha and modules, and "
        "is the reference; --model is its base. Unset: a new adapter",
    )
    rank: int | None = Field(
        None,
        ge=1,
        le=1024,
        description=f"of the factors: rows of A, columns of B; unset: {RANK}, or that of init_from",
    )
    alpha: int | None = Field(
        None,
        ge=1,
        description="factor alpha / rank scales the product B A; unset: twice the rank, or that of init_from",
    )
    target: tuple[str, ...] = Field(
        (),
        description="modules to adapt: ends of names such as q_proj, or regular expressions for whole names; unset: "
        "all linear layers but the output head",
    )
    exclude: tuple[str, ...] = Field(
        (),
        description="modules that are not adapted although target means them, named as in target",
    )
    rank_pattern: tuple[str, ...] = Field(
        (),
        description="other ranks of some modules, each as NAME=RANK with the end of a module's name or a regular "
        "expression for it; the first that fits counts",
    )
    alpha_pattern: tuple[str, ...] = Field(
        (),
        description="other alphas of some modules, each as NAME=ALPHA, with names as in rank_pattern",
    )
    dropout: float = Field(
        0.0, ge=0.0, lt=1.0, description="share of an adapter's inputs set to 0 in training"
    )
    lr_ratio: float = Field(
        1.0,
        gt=0.0,
        le=1000.0,
        description="learning rate of B as a multiple of that of A, which is the optimizer's; LoRA+ has 16",
    )
    modules_to_save: tuple[str, ...] = Field(
        (), description="modules that are trained as a whole, as a copy beside the base's"
    )
    trainable_token_indices: tuple[int, ...] = Field(
        (),
        description="ids of tokens whose embeddings are trained too, such as new tokens; an output head that shares "
        "the embeddings' matrix has the same rows",
    )
    use_rslora: bool | None = Field(
        None,
        description="scale B A by alpha / sqrt(rank), which suits high ranks; unset: no, or as init_from does",
    )

    def needed_by_options(self) -> frozenset[str]:
        """With dropout the old log-probs, in a pass of their own: an update's are what dropout makes of them."""
        return frozenset({"old_logprobs"} if self.dropout else ())

    @model_validator(mode="after")
    def _patterns_are_numbers(self) -> Self:
        if any(not 1 <= rank <= 1024 or rank % 1 for rank in self.ranks().values()):
            raise ValueError(f"rank_pattern {self.rank_pattern}: expected ranks of 1 to 1024")
        if any(not 0 < alpha < float("inf") for alpha in self.alphas().values()):
            raise ValueError(f"alpha_pattern {self.alpha_pattern}: expected alphas above 0")
        return self

    @model_validator(mode="after")
    def _tokens_are_ids(self) -> Self:
        ids = self.trainable_token_indices
        if any(token < 0 for token in ids) or len(set(ids)) < len(ids):
            raise ValueError(
                f"trainable_token_indices {ids}: expected ids of tokens from 0 on, each once"
            )
        return self

    def stacks(self) -> tuple[str, ...]:
        """Return the names of stacked parameters to adapt; of none, unless the adapter has an option for it."""
        return ()

    def ranks(self) -> dict[str, int | float]:
        """Return the ranks of ``rank_pattern`` by the patterns."""
        return dict(_pair(text) for text in self.rank_pattern)

    def alphas(self) -> dict[str, int | float]:
        """Return the alphas of ``alpha_pattern`` by the patterns."""
        return dict(_pair(text) for text in self.alpha_pattern)

    def continued_from(self) -> str | None:
        """The folder of ``init_from``."""
        return self.init_from

    def check_outside(self) -> None:
        """Read the settings in the folder of ``init_from``.

        Raises:
            ConfigError: it is no PEFT folder, or has settings that are not computed here or contradict these options.
        """
        if self.init_from is not None:
            self.beginning()

    def beginning(self) -> AdapterFolder:
        """Return the folder of ``init_from``, which is set.

        Raises:
            ConfigError: see ``check_outside``.
        """
        from .beginning import DECIDED, STACKS, read_beginning

        assert self.init_from is not None
        given = {option: getattr(self, option) for option in DECIDED if option != STACKS}
        given |= {"rank_pattern": self.ranks(), "alpha_pattern": self.alphas()}
        given[STACKS] = self.stacks()
        folder = read_beginning(self.init_from, given, has_magnitudes=self.has_magnitudes)
        if self.dropout and folder.config.get(STACKS):
            raise ConfigError(
                f"dropout {self.dropout:g} of the adapter: init_from {self.init_from} has {STACKS}, and factors of a "
                "stack have no inputs to drop. Leave dropout out.",
                code="adapter/dropout-of-a-stack",
            )
        return folder

    @property
    def new_rank(self) -> int:
        """The rank of an adapter that starts over."""
        return RANK if self.rank is None else self.rank

    @property
    def scaled_by(self) -> int:
        """The scaling's numerator for an adapter that starts over."""
        return 2 * self.new_rank if self.alpha is None else self.alpha

    def served_rank(self) -> int:
        """Return the largest rank of the factors.

        Raises:
            ConfigError: see ``check_outside``.
        """
        if self.init_from is None:
            return int(max((self.new_rank, *self.ranks().values())))
        from .beginning import largest_rank

        return largest_rank(self.beginning())


class StackedOptions(LowRankOptions):
    """Low-rank factors beside linear layers, and beside the stacked experts of a mixture."""

    target_parameters: tuple[str, ...] = Field(
        (),
        description="stacks of experts to adapt too, each a parameter of three dimensions: ends of names such as "
        "experts.gate_up_proj, or regular expressions; unset: experts are not adapted",
    )

    @model_validator(mode="after")
    def _stacks_have_no_dropout(self) -> Self:
        if self.target_parameters and self.dropout:
            raise ValueError(
                f"target_parameters {' '.join(self.target_parameters)} and dropout {self.dropout:g}: factors of a "
                "stack are added to it before it meets any input, so there is nothing to drop. Set dropout 0"
            )
        return self

    def stacks(self) -> tuple[str, ...]:
        """Return ``target_parameters``."""
        return self.target_parameters


def _pair(text: str) -> tuple[str, int | float]:
    """Return the pattern and the number of ``NAME=NUMBER``."""
    name, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        name = ""
    if not name:
        raise ValueError(f"{text!r}: expected NAME=NUMBER, such as q_proj=8")
    return name, int(value) if value.is_integer() else value
