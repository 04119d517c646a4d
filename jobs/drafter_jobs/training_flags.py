"""Which flags make speculators train a drafter that SGLang can serve.

Source of the flags: ``speculators.train.config`` of speculators 0.9.0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

SERVABLE_FLAGS: tuple[str, ...] = (
    *("--speculator-type", "eagle3"),
    *("--draft-arch", "llama"),
    *("--num-layers", "1"),
    # SGLang's residual is the un-normed hidden state; no edit of the weights repairs the other.
    "--no-norm-before-residual",
    # The default is a window of 2048 tokens, which the server applies only if told to.
    *("--full-attention-indices", "0"),
    # SGLang applies both norms since 0.5.17 where the config says so. On the quick start's data
    # they learn faster than the raw hidden states, at a learning rate of 1e-3.
    "--norm-before-fc",
    "--norm-output",
    # A sample without hidden states is a fault of the extraction, not to be passed over.
    *("--on-missing", "raise"),
)
"""Always set; the rest follows from the run's settings."""


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """What a run says about its training.

    Attributes
    ----------
    auxiliary_layers
        Input-of-layer ids, as recorded at extraction.
    packed_sequence_length
        Tokens of one packed batch.
    train_share
        Share of the samples that are trained on; the rest validates.
    """

    target: str
    dataset: str
    hidden_states: str
    output: str
    auxiliary_layers: Sequence[int]
    epochs: int
    ttt_steps: int
    packed_sequence_length: int
    learning_rate: str
    draft_vocabulary_size: int
    optimizer: str
    seed: int
    train_share: str
    on_cpu: bool
    trust_remote_code: bool = False


def training_flags(settings: TrainingSettings) -> list[str]:
    """Return the command line of ``speculators.train`` for these settings."""
    flags = [
        *SERVABLE_FLAGS,
        *("--verifier-name-or-path", settings.target),
        *("--data-path", settings.dataset),
        *("--hidden-states-path", settings.hidden_states),
        *("--save-path", settings.output),
        *("--target-layer-ids", *map(str, settings.auxiliary_layers)),
        *("--draft-vocab-size", str(settings.draft_vocabulary_size)),
        *("--total-seq-len", str(settings.packed_sequence_length)),
        *("--epochs", str(settings.epochs)),
        *("--ttt-steps", str(settings.ttt_steps)),
        *("--lr", settings.learning_rate),
        *("--optimizer", settings.optimizer),
        *("--train-data-ratio", settings.train_share),
        *("--seed", str(settings.seed)),
        *("--checkpoint-freq", "1"),
    ]
    if settings.trust_remote_code:
        flags.append("--trust-remote-code")
    if settings.on_cpu:
        # Flex attention and the fused loss are GPU kernels, and workers would only take
        # processor time from the training itself.
        flags += ["--draft-attn-impl", "sdpa", "--loss-implementation", "eager"]
        flags += ["--hidden-states-dtype", "float32", "--num-workers", "0", "--log-freq", "1"]
    else:
        # Each logged step synchronises the GPU.
        flags += ["--log-freq", "10"]
    return flags
