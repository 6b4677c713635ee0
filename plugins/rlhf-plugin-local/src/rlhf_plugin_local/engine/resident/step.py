"""One token for each row, without the host: hidden states, the draw, and the state behind it."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_torch.models.modeling import CausalLM
from rlhf_torch.packed.attention import Layout
from rlhf_torch.vision.pictures import PackedImages

from ..next_token.sampling import DrawKind, draw_rows
from ..routes import CachedRoutes
from ..states import DecodeSequences, RecurrentStates
from .attention import PagedDecode
from .paged_cache import PagedCache
from .rows import DeviceRows


class TokenStep:
    """The operations of one step, the same whether they run or are captured.

    Args:
        is_eos: (V,) true for end-of-sequence tokens.
        states: of recurrent layers; None: the model has none.
        routes: of tokens to experts; None: nobody asked for them.
    """

    def __init__(
        self,
        lm: CausalLM,
        rows: DeviceRows,
        cache: PagedCache,
        is_eos: Tensor,
        states: RecurrentStates | None,
        routes: CachedRoutes | None,
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
        carried = None
        if self.states:
            # A row that has finished feeds its last token until the host looks; its state is not to read that.
            carried = DecodeSequences(self.states, num_rows, alive=row["alive"] > 0)
        layout = PagedDecode(self.cache, row["position"], self.lm.compute_dtype, carried)
        places = row["position"] + row["shift"]
        hidden = self.hidden(row["token"], places, layout)  # (R, D)
        if self.routes:
            own = torch.arange(num_rows, device=hidden.device)
            self.routes.write(self.cache.index(1, own, row["position"]))
        self.draw(hidden, rows, kind)

    def hidden(
        self, tokens: Tensor, positions: Tensor, layout: Layout, images: PackedImages | None = None
    ) -> Tensor:
        """Return the model's hidden states (N, D), and take down the experts of its tokens if they are wanted."""
        if self.routes is None:
            return self.lm.hidden(tokens, positions, layout, images)
        return self.routes.hidden(self.lm, tokens, positions, layout, images)

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
