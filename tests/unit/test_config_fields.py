import pytest

from drafter_jobs.contract.config_fields import (
    LLAMA_DEFAULTS,
    context_length,
    rope_parameters,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}


def test_defaults_are_those_of_transformers() -> None:
    from transformers import LlamaConfig

    config = LlamaConfig()
    assert {name: getattr(config, name) for name in LLAMA_DEFAULTS} == LLAMA_DEFAULTS


def test_both_layouts_of_rope_settings_are_read_alike() -> None:
    old = rope_parameters({"rope_theta": 5.0, "rope_scaling": LLAMA3})
    new = rope_parameters({"rope_parameters": {**LLAMA3, "rope_theta": 5.0}})
    assert old == new


def test_transformers_reads_the_written_rope_settings() -> None:
    from transformers import LlamaConfig

    rope = rope_parameters({"rope_theta": 5.0, "rope_scaling": LLAMA3})
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    config = LlamaConfig(
        rope_theta=rope["rope_theta"], rope_scaling=scaling, max_position_embeddings=8192
    )
    assert config.rope_parameters == rope


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": 4096, "seq_length": 100}, 100),
        ({"max_position_embeddings": 8192, "rope_scaling": LLAMA3}, 8192),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2}}, 8192),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 40,
                    "original_max_position_embeddings": 4096,
                },
            },
            163840,
        ),
        ({}, 2048),
    ],
)
def test_context_length_is_the_engines(config: dict[str, object], expected: int) -> None:
    assert context_length(config) == expected
