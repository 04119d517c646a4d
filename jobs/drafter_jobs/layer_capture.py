"""Take hidden states out of a model of transformers while it runs.

Ids count as speculators counts: layer ``k`` stands for the input of decoder layer ``k``. The
last residual is the input of the final norm; transformers' own ``hidden_states[-1]`` is its
output, which a drafter must not be trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from drafter_jobs.shared_prefix import attends_in_full, shared_prefix

FINAL_NORM_NAMES = ("norm", "final_layernorm", "ln_f")


class LayersNotFoundError(ValueError):
    """The model class keeps layers or final norm in an unknown place."""


class LayerCapture:
    """Runs a target and keeps what the drafter is trained on.

    Parameters
    ----------
    model
        A causal language model of transformers.
    layers
        Input-of-layer ids.

    Raises
    ------
    LayersNotFoundError
        If the decoder has no ``layers`` or no final norm.
    """

    def __init__(self, model: Any, layers: Sequence[int]) -> None:
        self._decoder = model.get_decoder()
        norm = next(
            (getattr(self._decoder, n) for n in FINAL_NORM_NAMES if hasattr(self._decoder, n)), None
        )
        if norm is None or not hasattr(self._decoder, "layers"):
            raise LayersNotFoundError(
                f"{type(self._decoder).__name__} has no `layers`, or none of"
                f" {', '.join(FINAL_NORM_NAMES)} as its final norm"
            )
        self._captured: dict[int, torch.Tensor] = {}
        self._device = model.device
        self._shares = attends_in_full(model.config)
        modules = [*(self._decoder.layers[layer] for layer in layers), norm]
        self._hooks = [
            module.register_forward_pre_hook(self._keep(slot), with_kwargs=True)
            for slot, module in enumerate(modules)
        ]

    def run(self, samples: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Compute the hidden states of a batch.

        Rows are padded on the right: attention is causal, so that no token sees the padding,
        and positions are those of the row alone. What all rows begin with, mostly the chat
        template's system prompt, is computed once.

        Parameters
        ----------
        samples
            Token ids.

        Returns
        -------
        list of torch.Tensor
            ``[T, A + 1, H]`` for each sample, on the CPU.
        """
        shared = shared_prefix(samples) if self._shares and len(samples) > 1 else 0
        cache = DynamicCache(config=self._decoder.config) if shared else None
        width = max(len(sample) for sample in samples)
        ids = torch.zeros(len(samples), width - shared, dtype=torch.long)
        for row, sample in enumerate(samples):
            ids[row, : len(sample) - shared] = torch.tensor(sample[shared:])
        states = []
        if cache is not None:
            prefix = self._forward(torch.tensor([samples[0][:shared]]), cache)
            cache.batch_repeat_interleave(len(samples))
            states.append(prefix.expand(len(samples), -1, -1, -1))
        states.append(self._forward(ids, cache))
        whole = torch.cat(states, dim=1)
        return [whole[row, : len(sample)] for row, sample in enumerate(samples)]

    def _forward(self, ids: torch.Tensor, cache: DynamicCache | None) -> torch.Tensor:
        """Return ``[B, T, A + 1, H]`` on the CPU."""
        self._captured.clear()
        with torch.inference_mode():
            self._decoder(
                input_ids=ids.to(self._device), past_key_values=cache, use_cache=cache is not None
            )
            slots = [self._captured[slot].cpu() for slot in range(len(self._hooks))]
        self._captured.clear()
        return torch.stack(slots, dim=2)

    def close(self) -> None:
        """Take the hooks off the model."""
        for hook in self._hooks:
            hook.remove()

    def _keep(self, slot: int) -> Any:
        def keep(_: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._captured[slot] = args[0] if args else kwargs["hidden_states"]

        return keep
