"""One token for each row, without the host: hidden states, the draw, and the state behind it."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_torch.models.modeling import CausalLM

from ..next_token.drawing import DrawKind, draw_rows
from ..routes import CachedRoutes
from ..states import DecodeSequences, RecurrentStates
from .attention import PagedDecode
from .paged_cache import PagedCache
from .rows import DeviceRows


class TokenStep:
    """The operations of one step, the same whether they run or are captured.

    Args:
        is_eos: (V,) true for end-of-sequence tokens.
        states: of recurrent layers.
        routes: of tokens to experts.
    """

    def __init__(
        self,
        lm: CausalLM,
        rows: DeviceRows,
        cache: PagedCache,
        is_eos: Tensor,
        states: RecurrentStates,
        routes: CachedRoutes,
    ) -> None:
        self.lm = lm
        self.rows = rows
        self.cache = cache
        self.is_eos = is_eos
        self.states = states
        self.routes = routes

    @torch.no_grad()
    def __call__(self, num_rows: int, kind: DrawKind) -> None:
        """Sample one token for each of the first rows."""
        rows = slice(0, num_rows)
        row = self.rows.columns(rows)
        carried = DecodeSequences(self.states, num_rows) if self.lm.recurrent else None
        layout = PagedDecode(self.cache, row["position"], self.lm.compute_dtype, carried)
        places = row["position"] + row["shift"]
        hidden = self.routes.hidden(self.lm, row["token"], places, layout)  # (R, D)
        own = torch.arange(num_rows, device=hidden.device)
        self.routes.write(self.cache.index(1, own, row["position"]))
        self.draw(hidden, rows, kind)

    def draw(self, hidden: Tensor, rows: slice, kind: DrawKind) -> None:
        """Draw the next token of rows from their last hidden states (R, D); more of these only fill up a size."""
        row = self.rows.columns(rows)
        count = rows.stop - rows.start
        # The kernel neither sorts nor looks for the largest.
        is_plain = kind.truncated or kind.some_greedy
        if hidden.device.type == "cuda" and not is_plain:
            from .draw_kernel import draw

            raw = self.lm.raw_logits(hidden)[:count].contiguous()  # (R, V)
            tokens, logprobs = draw(
                raw,
                self.lm.logit_form,
                row["temperature"],
                row["seed"],
                row["index"],
                early=row["index"] < row["min_new"] if kind.delayed else None,
                is_eos=self.is_eos,
            )
        else:
            tokens, logprobs = draw_rows(self.lm.logits(hidden)[:count], row, kind, self.is_eos)
        self.rows.append(rows, tokens, logprobs, self.is_eos)
