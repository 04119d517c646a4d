"""An exported drafter computes in SGLang what it computed in speculators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from drafter_jobs.export import export_drafter

pytestmark = pytest.mark.e2e

TOKENS = 12
DRAFT_VOCABULARY = 128
AUXILIARY_LAYERS = [2, 3, 5]


def make_drafter(target: Path, directory: Path, **norms: bool) -> torch.nn.Module:
    """Save an untrained speculators drafter for a target and return it."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    torch.manual_seed(3)
    of_target = LlamaConfig.from_pretrained(target)
    layer = LlamaConfig(
        vocab_size=of_target.vocab_size,
        hidden_size=of_target.hidden_size,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=of_target.num_attention_heads,
        num_key_value_heads=of_target.num_key_value_heads,
        head_dim=of_target.head_dim,
        max_position_embeddings=of_target.max_position_embeddings,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 7000.0},
    )
    layer._attn_implementation = "eager"
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=DRAFT_VOCABULARY,
        eagle_aux_hidden_state_layer_ids=AUXILIARY_LAYERS,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig.from_pretrained(str(target)),
        ),
        **norms,
    )
    model = Eagle3DraftModel(config)
    ids = torch.randperm(of_target.vocab_size)[:DRAFT_VOCABULARY].sort().values
    members = torch.zeros(of_target.vocab_size, dtype=torch.bool)
    members[ids] = True
    model.load_vocab_mappings(members, ids - torch.arange(DRAFT_VOCABULARY))
    model.load_verifier_weights()
    with torch.no_grad():
        # Norms start at one, which would hide that two of them are swapped.
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
    model.save_pretrained(directory)
    return model.eval()


def trainers_logits(model: torch.nn.Module, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """First-step logits of speculators' own model, of shape (tokens, draft vocabulary)."""
    captured: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda module, args, logits: captured.append(logits[0]))
    with torch.no_grad():
        model(
            hidden_states=given["hidden_states"][None],
            input_ids=given["input_ids"][None],
            document_ids=torch.zeros(1, TOKENS, dtype=torch.long),
            position_ids=given["positions"][None],
            ttt_steps=1,
        )
    return captured[0]


def test_first_step_logits_are_equal(tiny_target: Path, tmp_path: Path) -> None:
    variants: dict[str, dict[str, bool]] = {
        "plain": {},
        "norm_before_fc": {"norm_before_fc": True, "norm_output": True},
        "fc_norm": {"fc_norm": True},
    }
    expected: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    for name, norms in variants.items():
        case = tmp_path / name
        model = make_drafter(tiny_target, case / "checkpoint", **norms)
        export_drafter(case / "checkpoint", case / "drafter", str(tiny_target))
        given = {
            "embeddings": model.embed_tokens.weight.detach().clone(),
            "input_ids": torch.randint(model.embed_tokens.num_embeddings, (TOKENS,)),
            "hidden_states": torch.randn(TOKENS, 3 * model.embed_tokens.embedding_dim),
            "positions": torch.arange(TOKENS),
        }
        save_file(given, case / "inputs.safetensors")
        expected[name] = trainers_logits(model, given), torch.nonzero(model.t2d).flatten()

    program = Path(__file__).with_name("engine_draft_logits.py")
    process = subprocess.run(
        [sys.executable, program, *(tmp_path / name for name in variants)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    for name, (logits, target_ids) in expected.items():
        engine = load_file(tmp_path / name / "outputs.safetensors")
        torch.testing.assert_close(engine["logits"], logits, rtol=1e-4, atol=1e-4, msg=name)
        torch.testing.assert_close(engine["target_ids"], target_ids, msg=name)
