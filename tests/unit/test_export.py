import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import (
    DRAFT_VOCABULARY,
    HIDDEN,
    VOCABULARY,
    trainer_tensors,
    write_checkpoint,
    write_target,
)
from safetensors.numpy import load_file, save_file

from drafter_jobs.contract.outcome import ExitCode, Reason
from drafter_jobs.export import export_drafter
from drafter_jobs.job import JobError


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target")


def refusal(checkpoint: Path, out: Path, target: Path, **options: Any) -> JobError:
    """Export, expect a refusal, and that nothing is left behind."""
    beside = sorted(entry.name for entry in out.parent.iterdir())
    with pytest.raises(JobError) as caught:
        export_drafter(checkpoint, out, str(target), **options)
    assert sorted(entry.name for entry in out.parent.iterdir()) == beside
    return caught.value


def refused_checkpoint(error: JobError) -> str:
    assert error.exit_code == ExitCode.INVALID_INPUT
    assert error.reason == Reason.CHECKPOINT_NOT_SERVABLE
    return error.message


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        entry.name: (entry.read_bytes(), entry.stat().st_mtime_ns) for entry in directory.iterdir()
    }


def test_weights_are_renamed_and_unchanged(tmp_path: Path, target: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    before = snapshot(checkpoint)
    report = export_drafter(checkpoint, tmp_path / "out", str(target))

    assert snapshot(checkpoint) == before
    source, written = trainer_tensors(), load_file(tmp_path / "out" / "model.safetensors")
    expected = {
        name.replace("layers.0.", "midlayer."): tensor
        for name, tensor in source.items()
        if name not in {"t2d", "embed_tokens.weight"}
    }
    assert written.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(written[name], tensor)
    assert sorted(report.dropped) == ["embed_tokens.weight", "t2d"]
    assert report.renamed["layers.0.mlp.up_proj.weight"] == "midlayer.mlp.up_proj.weight"
    weights = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert report.sha256["model.safetensors"] == hashlib.sha256(weights).hexdigest()
    on_disk = json.loads((tmp_path / "out" / "export-report.json").read_text())
    assert on_disk["sha256"] == report.sha256


def test_config_is_what_the_engine_reads(tmp_path: Path, target: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", config={"norm_output": True})
    export_drafter(checkpoint, tmp_path / "out", str(target))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["model_type"] == "llama"
    assert config["draft_vocab_size"] == DRAFT_VOCABULARY
    assert config["vocab_size"] == VOCABULARY
    assert config["dtype"] == "bfloat16"
    assert config["rope_theta"] == 5000.0
    assert config["norm_output"] is True
    assert config["tie_word_embeddings"] is False
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 4, 6]
    assert None not in config.values()
    absent = {"num_nextn_predict_layers", "auto_map", "target_hidden_size", "sliding_window"}
    assert not absent & config.keys()


def test_every_key_that_does_not_match_is_listed(tmp_path: Path, target: Path) -> None:
    tensors = trainer_tensors()
    del tensors["layers.0.mlp.up_proj.weight"]
    tensors["layers.0.self_attn.q_norm.weight"] = np.ones(4, dtype=np.float32)
    tensors["fc.weight"] = tensors["fc.weight"][:, :-HIDDEN].copy()
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tensors=tensors)
    message = refused_checkpoint(refusal(checkpoint, tmp_path / "out", target))
    assert "1 missing: midlayer.mlp.up_proj.weight" in message
    assert "1 unexpected: midlayer.self_attn.q_norm.weight" in message
    assert "1 misshapen: fc.weight [16, 32] instead of [16, 48]" in message


@pytest.mark.parametrize("name", sorted(trainer_tensors().keys() - {"t2d", "embed_tokens.weight"}))
def test_no_tensor_may_be_missing(tmp_path: Path, target: Path, name: str) -> None:
    tensors = trainer_tensors()
    del tensors[name]
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tensors=tensors)
    message = refused_checkpoint(refusal(checkpoint, tmp_path / "out", target))
    assert f"1 missing: {name.replace('layers.0.', 'midlayer.')}" in message


def test_wrong_dtype_is_misshapen(tmp_path: Path, target: Path) -> None:
    tensors = trainer_tensors()
    tensors["norm.weight"] = tensors["norm.weight"].astype(np.float64)
    tensors["d2t"] = tensors["d2t"].astype(np.int32)
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tensors=tensors)
    message = refused_checkpoint(refusal(checkpoint, tmp_path / "out", target))
    assert "2 misshapen: d2t I32 instead of I64, norm.weight F64 instead of" in message


def test_mixed_layouts_are_refused(tmp_path: Path, target: Path) -> None:
    tensors = trainer_tensors()
    tensors["midlayer.hidden_norm.weight"] = tensors["layers.0.hidden_norm.weight"]
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tensors=tensors)
    assert "mixes" in refused_checkpoint(refusal(checkpoint, tmp_path / "out", target))


@pytest.mark.parametrize(
    ("config", "layer", "expected"),
    [
        ({"norm_before_residual": True}, {}, "--no-norm-before-residual"),
        ({"embed_requires_grad": True}, {}, "embed_requires_grad is true"),
        ({"speculators_model_type": "dflash"}, {}, "not of a speculators EAGLE-3 drafter"),
        ({}, {"num_hidden_layers": 2}, "num_hidden_layers is 2"),
        ({}, {"model_type": "qwen3"}, "--draft-arch llama"),
        ({}, {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({}, {"attention_bias": True}, "attention_bias is true"),
        (
            {},
            {"layer_types": ["sliding_attention"], "sliding_window": 128},
            "sliding window of 128 tokens",
        ),
        ({}, {"hidden_size": 32}, "hidden_size is 32, the target's is 16"),
        ({}, {"vocab_size": 99}, "vocab_size is 99, the target's is 100"),
        ({"eagle_aux_hidden_state_layer_ids": [5, 2, 7]}, {}, "strictly ascending"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 5, 10]}, {}, "within [0, 9]"),
        (
            {},
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
    ],
)
def test_settings_beyond_repair_are_refused_with_the_way_out(
    tmp_path: Path, target: Path, config: dict[str, Any], layer: dict[str, Any], expected: str
) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint", config=config, layer=layer)
    assert expected in refused_checkpoint(refusal(checkpoint, tmp_path / "out", target))


def test_sliding_window_wider_than_the_context_is_harmless(tmp_path: Path, target: Path) -> None:
    layer = {"layer_types": ["sliding_attention"], "sliding_window": 2048}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", layer=layer)
    export_drafter(checkpoint, tmp_path / "out", str(target))


def test_absolute_vocabulary_map_is_named(tmp_path: Path, target: Path) -> None:
    tensors = trainer_tensors()
    tensors["d2t"] = tensors["d2t"] + np.arange(DRAFT_VOCABULARY)
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tensors=tensors)
    message = refused_checkpoint(refusal(checkpoint, tmp_path / "out", target))
    assert "absolute target ids" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_weights_are_refused(tmp_path: Path, target: Path, value: float) -> None:
    tensors = trainer_tensors()
    tensors["lm_head.weight"][-1, -1] = value
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tensors=tensors)
    message = refused_checkpoint(refusal(checkpoint, tmp_path / "out", target))
    assert "lm_head.weight has 1 elements that are infinite or not a number" in message


def test_extraction_of_other_layers_is_refused(tmp_path: Path, target: Path) -> None:
    record = tmp_path / "extract.json"
    record.write_text(json.dumps({"auxiliary_layers": [2, 5, 8]}))
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    error = refusal(checkpoint, tmp_path / "out", target, extract_record=record)
    assert "extracted from [2, 5, 8]" in refused_checkpoint(error)


def test_extraction_of_the_same_layers_is_accepted(tmp_path: Path, target: Path) -> None:
    record = tmp_path / "extract.json"
    record.write_text(json.dumps({"auxiliary_layers": [2, 5, 7]}))
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    report = export_drafter(checkpoint, tmp_path / "out", str(target), extract_record=record)
    assert report.auxiliary_layers.trained == [2, 5, 7]


def test_context_length_is_raised_to_the_targets(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", max_position_embeddings=4096)
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    report = export_drafter(checkpoint, tmp_path / "out", str(target))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["max_position_embeddings"] == 4096
    assert any("raised from 512 to 4096" in note for note in report.notes)


def test_context_length_that_sets_the_angles_is_not_raised(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", max_position_embeddings=4096)
    layer = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", layer=layer)
    message = refused_checkpoint(refusal(checkpoint, tmp_path / "out", target))
    assert "sets the angles of rope_type 'dynamic'" in message


def test_target_without_a_hook_is_refused(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", architectures=["GPT2LMHeadModel"])
    error = refusal(write_checkpoint(tmp_path / "checkpoint"), tmp_path / "out", target)
    assert error.reason == Reason.TARGET_INVALID
    assert "GPT2LMHeadModel" in error.message


def test_multimodal_target_with_latent_attention(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    text = {
        "num_hidden_layers": 61,
        "hidden_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 262144,
    }
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": text}
    (target / "config.json").write_text(json.dumps(config))
    layers = {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", config=layers)
    report = export_drafter(checkpoint, tmp_path / "out", str(target))
    assert report.auxiliary_layers.written == [1, 29, 57]
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["max_position_embeddings"] == 262144


def test_sharded_checkpoint(tmp_path: Path, target: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    (checkpoint / "model.safetensors").unlink()
    tensors = trainer_tensors()
    names = sorted(tensors)
    shards = {
        "model-00001-of-00002.safetensors": names[:7],
        "model-00002-of-00002.safetensors": names[7:],
    }
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, checkpoint / file)
    weight_map = {name: file for file, members in shards.items() for name in members}
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    export_drafter(checkpoint, tmp_path / "out", str(target))
    written = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(written["fc.weight"], tensors["fc.weight"])

    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    error = refusal(checkpoint, tmp_path / "other", target)
    assert error.reason == Reason.CHECKPOINT_INVALID
    assert "model-00002-of-00002.safetensors, which is missing" in error.message


def test_pickled_weights_are_refused(tmp_path: Path, target: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    error = refusal(checkpoint, tmp_path / "out", target)
    assert error.reason == Reason.CHECKPOINT_INVALID
    assert "pickled" in error.message


def damaged(data: bytes, kind: str) -> bytes:
    return {
        "cut in the data": data[:-10],
        "cut in the header": data[:40],
        "empty": b"",
        "appended to": data + b"\0" * 8,
        "not safetensors": b"PK\x03\x04" + data,
        "header not JSON": data[:8] + b"x" + data[9:],
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "cut in the data",
        "cut in the header",
        "empty",
        "appended to",
        "not safetensors",
        "header not JSON",
    ],
)
def test_damaged_file_is_refused(tmp_path: Path, target: Path, kind: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(damaged(weights.read_bytes(), kind))
    error = refusal(checkpoint, tmp_path / "out", target)
    assert error.reason == Reason.CHECKPOINT_INVALID
    assert "model.safetensors" in error.message


@pytest.mark.parametrize("text", ["", "[]", "{", "\xff"])
def test_unreadable_config_is_refused(tmp_path: Path, target: Path, text: str) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    (checkpoint / "config.json").write_bytes(text.encode("latin-1"))
    error = refusal(checkpoint, tmp_path / "out", target)
    assert error.reason == Reason.CHECKPOINT_INVALID
    assert "config.json" in error.message


def test_best_checkpoint_of_a_training_is_taken(tmp_path: Path, target: Path) -> None:
    training = tmp_path / "checkpoints"
    for epoch in (0, 1, 2):
        write_checkpoint(training / str(epoch), config={"epoch": epoch})
    (training / "10").mkdir()
    newest = export_drafter(training, tmp_path / "newest", str(target))
    assert Path(newest.source.path).name == "2"
    (training / "checkpoint_best").symlink_to("1")
    best = export_drafter(training, tmp_path / "best", str(target))
    assert Path(best.source.path).name == "1"


def test_second_export_changes_nothing(tmp_path: Path, target: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    first = export_drafter(checkpoint, tmp_path / "out", str(target))
    before = snapshot(tmp_path / "out")
    assert export_drafter(checkpoint, tmp_path / "out", str(target)) == first
    assert snapshot(tmp_path / "out") == before


def test_export_of_other_input_is_kept_unless_told(tmp_path: Path, target: Path) -> None:
    export_drafter(write_checkpoint(tmp_path / "one"), tmp_path / "out", str(target))
    tensors = trainer_tensors()
    tensors["norm.weight"] += 1
    other = write_checkpoint(tmp_path / "two", tensors=tensors)
    before = snapshot(tmp_path / "out")
    error = refusal(other, tmp_path / "out", target)
    assert error.exit_code == ExitCode.CONFIGURATION_ERROR
    assert "other input" in error.message
    assert snapshot(tmp_path / "out") == before
    export_drafter(other, tmp_path / "out", str(target), replace=True)
    written = load_file(tmp_path / "out" / "model.safetensors")
    np.testing.assert_array_equal(written["norm.weight"], tensors["norm.weight"])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["one", "out", "target", "two"]


def test_tampered_export_is_not_taken_for_done(tmp_path: Path, target: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    export_drafter(checkpoint, tmp_path / "out", str(target))
    with (tmp_path / "out" / "model.safetensors").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x01")
    assert "was changed since" in refusal(checkpoint, tmp_path / "out", target).message


@pytest.mark.parametrize("replace", [False, True])
def test_foreign_directory_is_never_touched(tmp_path: Path, target: Path, replace: bool) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    checkpoint = write_checkpoint(tmp_path / "checkpoint")
    error = refusal(checkpoint, tmp_path / "out", target, replace=replace)
    assert error.exit_code == ExitCode.CONFIGURATION_ERROR
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"


MEASURE_PEAK = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A checkpoint of 400 MB of zeros, sparse on disk, is exported in under 200 MB."""
    inner = 2_000_000
    target = write_target(tmp_path / "target")
    tensors = trainer_tensors()
    small = write_checkpoint(tmp_path / "small", tensors=tensors)
    header: dict[str, Any] = {}
    offset = 0
    for name, tensor in tensors.items():
        shape = list(tensor.shape)
        if ".mlp." in name:
            shape = [HIDDEN, inner] if "down" in name else [inner, HIDDEN]
        size = int(np.prod(shape)) * tensor.itemsize
        dtype = {"float32": "F32", "int64": "I64", "bool": "BOOL"}[str(tensor.dtype)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    large = write_checkpoint(tmp_path / "large", layer={"intermediate_size": inner})
    weights = large / "model.safetensors"
    with weights.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        start = file.tell()
        for name in ("d2t", "t2d"):
            file.seek(start + header[name]["data_offsets"][0])
            file.write(tensors[name].tobytes())
        file.truncate(start + offset)
    assert weights.stat().st_size > 350_000_000

    def peak(checkpoint: Path, out: str) -> int:
        program = Path(sys.executable).with_name("drafter-export")
        arguments = [checkpoint, tmp_path / out, "--target", target, "--metrics-port", "0"]
        # The peak of a process includes what it was forked from: this one may have torch in it.
        measured = subprocess.run(
            [sys.executable, "-c", MEASURE_PEAK, program, *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return int(measured.stdout) * 1024

    needed = peak(large, "large-out")
    assert needed < 200_000_000
    assert needed - peak(small, "small-out") < 50_000_000
