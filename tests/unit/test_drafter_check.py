import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import (
    DRAFT_VOCABULARY,
    HIDDEN,
    TARGET_CONFIG,
    VOCABULARY,
    write_checkpoint,
    write_target,
)
from safetensors.numpy import load_file, save_file

from drafter_jobs.contract import eagle3_mla
from drafter_jobs.contract.target_facts import target_facts
from drafter_jobs.drafter_check import Severity, check_drafter
from drafter_jobs.export import check_directory, export_drafter
from drafter_jobs.speculators_checkpoint import open_checkpoint

TARGET = target_facts(TARGET_CONFIG)


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """A sound drafter in the engine's layout."""
    target = write_target(tmp_path / "target")
    export_drafter(write_checkpoint(tmp_path / "checkpoint"), tmp_path / "drafter", str(target))
    return tmp_path / "drafter"


def change(
    drafter: Path,
    config: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray[Any, Any] | None] | None = None,
) -> None:
    """Set config fields and tensors; ``None`` removes a tensor, ``...`` a field."""
    path = drafter / "config.json"
    fields = json.loads(path.read_text()) | (config or {})
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))
    weights = load_file(drafter / "model.safetensors") | (tensors or {})
    kept = {name: tensor for name, tensor in weights.items() if tensor is not None}
    save_file(kept, drafter / "model.safetensors")


def findings(drafter: Path, severity: Severity) -> list[str]:
    found = check_drafter(open_checkpoint(drafter), TARGET)
    return [finding.message for finding in found if finding.severity is severity]


def test_exported_drafter_is_sound(drafter: Path) -> None:
    assert findings(drafter, Severity.ERROR) == []
    assert findings(drafter, Severity.WARNING) == []
    (note,) = findings(drafter, Severity.NOTE)
    assert "layers [2, 5, 7]" in note


def test_directory_of_the_trainer_is_told_apart(tmp_path: Path, drafter: Path) -> None:
    (error,) = findings(tmp_path / "checkpoint", Severity.ERROR)
    assert "drafter-export CHECKPOINT OUT" in error


@pytest.mark.parametrize(
    "rename",
    [
        {"midlayer.": "layers.0."},
        {"midlayer.": "model.layers.0.", "fc.": "model.fc.", "norm.": "norm."},
        {"midlayer.": "model.midlayer."},
    ],
)
def test_every_name_the_loader_takes_is_accepted(drafter: Path, rename: dict[str, str]) -> None:
    weights = load_file(drafter / "model.safetensors")
    renamed = {}
    for name, tensor in weights.items():
        prefix = next((old for old in rename if name.startswith(old)), None)
        renamed[name if prefix is None else rename[prefix] + name.removeprefix(prefix)] = tensor
    save_file(renamed, drafter / "model.safetensors")
    assert findings(drafter, Severity.ERROR) == []


def test_missing_tensor_is_left_uninitialised(drafter: Path) -> None:
    change(drafter, tensors={"midlayer.mlp.up_proj.weight": None})
    (error,) = findings(drafter, Severity.ERROR)
    assert error.startswith("layers.0.mlp.up_proj.weight is missing")


def test_lost_rename_shows_both_sides(drafter: Path) -> None:
    norm = load_file(drafter / "model.safetensors")["midlayer.hidden_norm.weight"]
    change(
        drafter,
        tensors={"midlayer.hidden_norm.weight": None, "layer.hidden_norm.weight": norm},
    )
    errors = findings(drafter, Severity.ERROR)
    assert any(error.startswith("layers.0.hidden_norm.weight is missing") for error in errors)
    assert any(error.startswith("layer.hidden_norm.weight is ignored") for error in errors)


def test_two_names_for_one_parameter(drafter: Path) -> None:
    norm = load_file(drafter / "model.safetensors")["midlayer.hidden_norm.weight"]
    change(drafter, tensors={"layers.0.hidden_norm.weight": norm})
    (error,) = findings(drafter, Severity.ERROR)
    assert "load into the same parameter" in error


@pytest.mark.parametrize(
    ("config", "severity", "expected"),
    [
        ({"target_hidden_size": None}, Severity.ERROR, "target_hidden_size is null"),
        ({"draft_vocab_size": ...}, Severity.ERROR, "draft_vocab_size is absent"),
        ({"norm_before_residual": True}, Severity.ERROR, "norm_before_residual is true"),
        ({"hidden_size": ...}, Severity.ERROR, "config.json lacks hidden_size"),
        ({"hidden_size": "wide"}, Severity.ERROR, "a value of a wrong type"),
        ({"max_position_embeddings": 64}, Severity.ERROR, "the context length is 64 tokens"),
        ({"norm_before_fc": True}, Severity.ERROR, "input_norm.weight is missing"),
        ({"architectures": ["LlamaForCausalLM"]}, Severity.ERROR, "EAGLE-3 drafters are"),
        (
            {"eagle_config": {"use_aux_hidden_state": False}},
            Severity.ERROR,
            "captures nothing for fc",
        ),
        ({"dtype": "float32"}, Severity.WARNING, "computes in float16"),
        ({"num_nextn_predict_layers": 0}, Severity.WARNING, "remove the field"),
        ({"tie_word_embeddings": True}, Severity.WARNING, "the embeddings are the head"),
        (
            {"sliding_window": 2048, "layer_types": ["sliding_attention"]},
            Severity.WARNING,
            "--speculative-draft-window-size 2048",
        ),
        (
            {"eagle_config": ..., "eagle_aux_hidden_state_layer_ids": [1, 4, 6]},
            Severity.WARNING,
            "stands outside eagle_config",
        ),
    ],
)
def test_config_the_engine_reads_otherwise(
    drafter: Path, config: dict[str, Any], severity: Severity, expected: str
) -> None:
    change(drafter, config)
    assert any(expected in message for message in findings(drafter, severity))


def test_reduced_vocabulary_without_its_map(drafter: Path) -> None:
    change(drafter, tensors={"d2t": None})
    (error,) = findings(drafter, Severity.ERROR)
    assert error.startswith("d2t is missing")


def test_drafter_of_another_target(drafter: Path) -> None:
    other = target_facts(TARGET_CONFIG | {"vocab_size": VOCABULARY + 1, "num_hidden_layers": 6})
    found = [str(finding) for finding in check_drafter(open_checkpoint(drafter), other)]
    assert any("vocab_size is 100, the target's is 101" in finding for finding in found)
    assert any("are not distinct layers" in finding for finding in found)


def test_report_of_a_directory_is_printed(
    drafter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_directory(drafter, str(tmp_path / "target"))
    assert "14 tensors, fit for SGLang" in capsys.readouterr().out
    change(drafter, tensors={"fc.weight": None})
    assert not check_directory(drafter, None)
    assert "SGLang cannot serve this drafter, 1 errors" in capsys.readouterr().out


def test_drafter_with_latent_attention(tmp_path: Path) -> None:
    config = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "q_lora_rank": 6,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 2,
        "qk_nope_head_dim": 3,
        "v_head_dim": 5,
        "vocab_size": VOCABULARY,
        "draft_vocab_size": DRAFT_VOCABULARY,
        "max_position_embeddings": 512,
        "dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 6]},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = {
        name: np.zeros(tensor.shape, np.int64 if name == "d2t" else np.float32)
        for name, tensor in eagle3_mla.expected_tensors(config).items()
    }
    assert tensors["layers.0.self_attn.kv_b_proj.weight"].shape == (4 * (3 + 5), 8)
    save_file(tensors, tmp_path / "model.safetensors")
    assert findings(tmp_path, Severity.ERROR) == []
    # This class, unlike the Llama one, adds "model." itself.
    tensors["model.fc.weight"] = tensors.pop("fc.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    errors = findings(tmp_path, Severity.ERROR)
    assert any(error.startswith("fc.weight is missing") for error in errors)
