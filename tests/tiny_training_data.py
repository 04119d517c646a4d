"""A small dataset with hidden states in speculators' formats, from which a drafter can learn."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from datasets import Dataset
from safetensors.torch import save_file

AUXILIARY_LAYERS = (2, 4, 5)
DRAFT_VOCABULARY_SIZE = 64


def make_training_data(
    root: Path, *, hidden_size: int, vocabulary_size: int, samples: int = 64, seed: int = 0
) -> tuple[Path, Path]:
    """Write a dataset whose next token follows from the present one.

    Returns
    -------
    tuple of Path
        The directories of the dataset and of the hidden states.
    """
    generator = torch.Generator().manual_seed(seed)
    dataset, hidden_states = root / "dataset", root / "hidden-states"
    hidden_states.mkdir(parents=True)
    embedding = torch.randn(vocabulary_size, hidden_size, generator=generator)
    frequencies: dict[int, int] = {}
    rows = []
    for row in range(samples):
        length = int(torch.randint(24, 48, (1,), generator=generator))
        tokens = [int(torch.randint(8, 8 + DRAFT_VOCABULARY_SIZE, (1,), generator=generator))]
        while len(tokens) < length:
            tokens.append(8 + (tokens[-1] * 5 + 3) % DRAFT_VOCABULARY_SIZE)
        for token in tokens:
            frequencies[token] = frequencies.get(token, 0) + 1
        rows.append({"input_ids": tokens, "loss_mask": [1] * length, "seq_len": length})
        states = embedding[torch.tensor(tokens)][:, None, :].repeat(1, 4, 1)
        save_file(
            {
                "token_ids": torch.tensor(tokens, dtype=torch.int64),
                "hidden_states": states.to(torch.bfloat16).contiguous(),
            },
            hidden_states / f"hs_{row}.safetensors",
        )
    Dataset.from_list(rows).with_format("torch").save_to_disk(dataset)
    torch.save(frequencies, dataset / "token_freq.pt")
    record = {"auxiliary_layers": list(AUXILIARY_LAYERS), "hidden_size": hidden_size}
    (hidden_states / "extract.json").write_text(json.dumps(record))
    return dataset, hidden_states
