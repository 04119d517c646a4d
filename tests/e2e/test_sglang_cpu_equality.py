"""The real SGLang on the CPU decodes greedily what transformers decodes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from random_drafter import make_random_drafter
from sglang_server import running_sglang, speculation
from transformers import AutoModelForCausalLM

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

NEW_TOKENS = 24
PROMPT_LENGTHS = (3, 17, 40, 64)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(5, 600, (n,), generator=generator).tolist() for n in PROMPT_LENGTHS]


@pytest.fixture(scope="module")
def expected(tiny_target: Path, prompts: list[list[int]]) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float32).eval()
    continuations = []
    with torch.inference_mode():
        for prompt in prompts:
            tokens = model.generate(
                torch.tensor([prompt]),
                max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
                eos_token_id=None,
                do_sample=False,
            )
            continuations.append(tokens[0, len(prompt) :].tolist())
    return continuations


@pytest.fixture(scope="module")
def drafter(tiny_target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_random_drafter(tiny_target, tmp_path_factory.mktemp("drafter") / "random")


@pytest.mark.parametrize(
    ("draft_tokens", "topk", "steps"),
    [(0, 0, 0), (4, 1, 3), (8, 4, 3)],
    ids=["none", "chain", "tree"],
)
def test_tokens_equal_those_of_transformers(
    tiny_target: Path,
    drafter: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    tmp_path: Path,
    draft_tokens: int,
    topk: int,
    steps: int,
) -> None:
    arguments = speculation(drafter, draft_tokens, topk, steps) if draft_tokens else []
    with running_sglang(tiny_target, tmp_path, arguments) as server:
        alone = [server.generate([prompt], NEW_TOKENS)[0] for prompt in prompts]
        with ThreadPoolExecutor(len(prompts)) as requests:
            together = list(
                requests.map(lambda prompt: server.generate([prompt], NEW_TOKENS)[0], prompts)
            )
        resolved = server.get("/server_info")
    for answers in (alone, together):
        assert [answer["output_ids"] for answer in answers] == expected
    assert resolved["attention_backend"] == "intel_amx"
    if draft_tokens:
        verifications = [answer["meta_info"]["spec_verify_ct"] for answer in alone]
        assert all(0 < count < NEW_TOKENS for count in verifications)
