"""The plain-torch operators against straightforward definitions of what they compute."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
import torch

STAND_INS = Path(__file__).resolve().parents[2] / "sandbox/drafter_sglang_cpu/stand_in_packages"


@pytest.fixture(scope="module", autouse=True)
def kernels() -> object:
    # Not left on the path: its torchvision would be taken for the real one by transformers.
    sys.path.append(str(STAND_INS))
    try:
        import sgl_kernel
    finally:
        sys.path.remove(str(STAND_INS))
    return sgl_kernel


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), rtol=1e-5, atol=1e-5)


def reference_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def test_rmsnorm_divides_by_the_root_of_the_mean_square() -> None:
    x, weight = torch.randn(5, 48) * 3, torch.randn(48)
    close(torch.ops.sgl_kernel.rmsnorm_cpu(x, weight, 1e-5), reference_norm(x, weight, 1e-5))


def test_rmsnorm_uses_eps() -> None:
    x, weight = torch.full((1, 32), 1e-4), torch.ones(32)
    close(torch.ops.sgl_kernel.rmsnorm_cpu(x, weight, 1e-2), reference_norm(x, weight, 1e-2))


def test_rmsnorm_keeps_a_16_bit_dtype() -> None:
    x, weight = torch.randn(3, 32).bfloat16(), torch.ones(32).bfloat16()
    output = torch.ops.sgl_kernel.rmsnorm_cpu(x, weight, 1e-5)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(
        output.float(), reference_norm(x, weight, 1e-5).float(), rtol=0.02, atol=0.02
    )


def test_fused_add_rmsnorm_writes_both_in_place() -> None:
    x, residual, weight = torch.randn(4, 32), torch.randn(4, 32), torch.randn(32)
    total = x + residual
    torch.ops.sgl_kernel.fused_add_rmsnorm_cpu(x, residual, weight, 1e-5)
    close(residual, total)
    close(x, reference_norm(total, weight, 1e-5))


def test_gated_activations_multiply_the_second_half() -> None:
    x = torch.randn(3, 20)
    gate, up = x[:, :10], x[:, 10:]
    before = x.clone()
    close(torch.ops.sgl_kernel.silu_and_mul_cpu(x), gate * torch.sigmoid(gate) * up)
    close(
        torch.ops.sgl_kernel.gelu_and_mul_cpu(x),
        0.5 * gate * (1 + torch.erf(gate / 2**0.5)) * up,
    )
    assert torch.equal(x, before)


def reference_rotation(
    positions: torch.Tensor, heads: torch.Tensor, cache: torch.Tensor, is_neox: bool
) -> torch.Tensor:
    """T x heads x width, one number pair at a time."""
    half = cache.shape[1] // 2
    output = heads.clone()
    for token, position in enumerate(positions.tolist()):
        for i in range(half):
            a, b = (i, i + half) if is_neox else (2 * i, 2 * i + 1)
            cos, sin = cache[position, i], cache[position, half + i]
            first, second = heads[token, :, a], heads[token, :, b]
            output[token, :, a] = first * cos - second * sin
            output[token, :, b] = second * cos + first * sin
    return output


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("rotary_dim", [16, 8])
@pytest.mark.parametrize("neighbours", [True, False])
def test_rotary_embedding_rotates_pairs(is_neox: bool, rotary_dim: int, neighbours: bool) -> None:
    tokens, width = 3, 16
    qkv = torch.randn(tokens, (4 + 2 + 2) * width)
    query, key, _ = qkv.split([4 * width, 2 * width, 2 * width], -1)
    if not neighbours:
        query, key = query.clone(), key.clone()
    cache, positions = torch.randn(32, rotary_dim), torch.tensor([7, 0, 30])
    new_query, new_key = torch.ops.sgl_kernel.rotary_embedding_cpu(
        positions, query, key, width, cache, is_neox
    )
    for new, old, heads in ((new_query, query, 4), (new_key, key, 2)):
        expected = reference_rotation(positions, old.reshape(tokens, heads, width), cache, is_neox)
        close(new, expected.view(tokens, -1))


def test_rotary_embedding_follows_a_replaced_cache() -> None:
    query, key, positions = torch.randn(1, 16), torch.randn(1, 16), torch.tensor([1])
    for _ in range(3):
        cache = torch.randn(4, 16)
        new_query, _ = torch.ops.sgl_kernel.rotary_embedding_cpu(
            positions, query, key, 16, cache, True
        )
        close(new_query, reference_rotation(positions, query.view(1, 1, 16), cache, True)[:, 0])


def test_packed_linear_is_a_linear_layer() -> None:
    weight, bias, x = torch.randn(48, 64), torch.randn(48), torch.randn(5, 64)
    packed = torch.ops.sgl_kernel.convert_weight_packed(weight)
    expected = x.double() @ weight.double().T
    linear = torch.ops.sgl_kernel.weight_packed_linear
    close(linear(x, packed, None, True), expected)
    close(linear(x, packed, bias, True), expected + bias)
    close(linear(x, weight, None, False), expected)


def test_packed_linear_gives_a_row_the_same_bits_alone_and_among_others() -> None:
    packed = torch.ops.sgl_kernel.convert_weight_packed(torch.randn(576, 576))
    x = torch.randn(8, 576)
    linear = torch.ops.sgl_kernel.weight_packed_linear
    together = linear(x, packed, None, True)
    for rows in (1, 2, 3, 4, 5):
        assert torch.equal(linear(x[:rows], packed, None, True), together[:rows])


class Cache:
    """A KV cache with a few requests in scattered or consecutive slots."""

    def __init__(self, lengths: list[int], scattered: bool) -> None:
        self.lengths = lengths
        self.keys, self.values = torch.randn(200, 2, 8), torch.randn(200, 2, 8)
        slots = torch.randperm(199) + 1 if scattered else torch.arange(1, 200)
        self.req_to_token = torch.zeros(6, 64, dtype=torch.int32)
        self.rows = torch.tensor([4, 1, 3, 5][: len(lengths)])
        taken = 0
        for row, length in zip(self.rows.tolist(), lengths, strict=True):
            self.req_to_token[row, :length] = slots[taken : taken + length].int()
            taken += length

    def attention(self, q: torch.Tensor, request: int, sees: torch.Tensor) -> torch.Tensor:
        """Attend with one token's heads to the positions it sees, one head at a time."""
        slots = self.req_to_token[self.rows[request], : self.lengths[request]].long()[sees]
        output = torch.empty_like(q)
        for head in range(q.shape[0]):
            shared = head // (q.shape[0] // 2)
            scores = self.keys[slots, shared] @ q[head] * 0.3
            output[head] = torch.softmax(scores, 0) @ self.values[slots, shared]
        return output


@pytest.mark.parametrize("lengths", [[9], [9, 4, 17]])
@pytest.mark.parametrize("scattered", [True, False])
def test_decode_attention_stores_then_attends_to_everything(
    lengths: list[int], scattered: bool
) -> None:
    cache = Cache(lengths, scattered)
    requests = len(lengths)
    q, output = torch.randn(requests, 6, 8), torch.empty(requests, 6, 8)
    k, v = torch.randn(requests, 2, 8), torch.randn(requests, 2, 8)
    last = torch.tensor(lengths) - 1
    loc = cache.req_to_token[cache.rows, last].long()
    torch.ops.sgl_kernel.decode_attention_cpu(
        q, cache.keys, cache.values, 1.0, 1.0, output, k, v, loc, torch.empty(1),
        cache.req_to_token, cache.rows, torch.tensor(lengths), 0.3, 0.0, False, 0, None, None,
    )  # fmt: skip
    assert torch.equal(cache.keys[loc], k)
    assert torch.equal(cache.values[loc], v)
    for request, length in enumerate(lengths):
        close(output[request], cache.attention(q[request], request, torch.arange(length)))


def extend(
    cache: Cache, q: torch.Tensor, new: list[int], tree_mask: torch.Tensor | None
) -> torch.Tensor:
    output = torch.empty_like(q)
    counts = torch.tensor(new, dtype=torch.int32)
    torch.ops.sgl_kernel.extend_attention_cpu(
        q, None, None, output, cache.keys, cache.values, 1.0, 1.0, cache.req_to_token, cache.rows,
        torch.tensor(cache.lengths), counts, (counts.cumsum(0) - counts).int(), max(new), 0.3, 0.0,
        False, 0, None, None, tree_mask, True,
    )  # fmt: skip
    return output


@pytest.mark.parametrize("scattered", [True, False])
@pytest.mark.parametrize(
    ("lengths", "new"),
    [([9], [9]), ([9], [4]), ([9, 4, 17], [4, 4, 4]), ([9, 30], [2, 25]), ([40, 30], [20, 20])],
)
def test_extend_attention_is_causal(lengths: list[int], new: list[int], scattered: bool) -> None:
    cache = Cache(lengths, scattered)
    q = torch.randn(sum(new), 6, 8)
    output = extend(cache, q, new, None)
    token = 0
    for request, (length, count) in enumerate(zip(lengths, new, strict=True)):
        for i in range(count):
            sees = torch.arange(length - count + i + 1)
            close(output[token], cache.attention(q[token], request, sees))
            token += 1


@pytest.mark.parametrize("lengths", [[9], [9, 5]])
def test_extend_attention_keeps_to_the_tree(lengths: list[int]) -> None:
    cache = Cache(lengths, True)
    requests, count = len(lengths), 3
    q = torch.randn(requests * count, 6, 8)
    # Two children of the root: neither sees the other.
    tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    output = extend(cache, q, [count] * requests, tree.flatten().repeat(requests))
    for request, length in enumerate(lengths):
        for i in range(count):
            sees = torch.cat((torch.ones(length - count, dtype=torch.bool), tree[i])).nonzero()[
                :, 0
            ]
            token = request * count + i
            close(output[token], cache.attention(q[token], request, sees))


def test_attention_notices_that_the_next_pass_has_new_slots() -> None:
    cache = Cache([6], False)
    q = torch.randn(2, 6, 8)
    lengths, counts = torch.tensor([6]), torch.tensor([2], dtype=torch.int32)
    starts = torch.zeros(1, dtype=torch.int32)
    for _ in range(2):
        output = torch.empty_like(q)
        # The very same tensors, changed in place between the passes.
        torch.ops.sgl_kernel.extend_attention_cpu(
            q, None, None, output, cache.keys, cache.values, 1.0, 1.0, cache.req_to_token,
            cache.rows, lengths, counts, starts, 2, 0.3, 0.0, False, 0, None, None, None, True,
        )  # fmt: skip
        close(output[1], cache.attention(q[1], 0, torch.arange(6)))
        cache.req_to_token[4, :6] = torch.tensor([50, 40, 60, 70, 30, 20])


@pytest.mark.parametrize(
    ("argument", "value"), [("sliding_window", 5), ("logit_cap", 30.0), ("sinks", torch.ones(6))]
)
def test_attention_refuses_what_it_would_ignore(argument: str, value: object) -> None:
    cache = Cache([3], False)
    settings = {"logit_cap": 0.0, "sliding_window": 0, "sinks": None, argument: value}
    with pytest.raises(NotImplementedError, match=f"decode_attention_cpu.*{argument}"):
        torch.ops.sgl_kernel.decode_attention_cpu(
            torch.randn(1, 6, 8), cache.keys, cache.values, 1.0, 1.0, torch.empty(1, 6, 8), None,
            None, torch.tensor([3]), torch.empty(1), cache.req_to_token, cache.rows,
            torch.tensor([3]), 0.3, settings["logit_cap"], False, settings["sliding_window"], None,
            settings["sinks"],
        )  # fmt: skip


def test_store_cache_writes_the_slots() -> None:
    keys, values = torch.zeros(6, 2, 4), torch.zeros(6, 2, 4)
    k, v = torch.randn(2, 2, 4), torch.randn(2, 2, 4)
    torch.ops.sgl_kernel.store_cache_cpu(k, v, keys, values, torch.tensor([5, 2]), 8)
    assert torch.equal(keys[[5, 2]], k)
    assert torch.equal(values[[5, 2]], v)
    assert not keys[[0, 1, 3, 4]].any()


def test_slots_are_written_to_and_read_from_their_requests() -> None:
    import sgl_kernel

    table = torch.zeros(4, 10, dtype=torch.int32)
    rows, starts, ends = torch.tensor([2, 0]), torch.tensor([3, 0]), torch.tensor([5, 4])
    slots = torch.tensor([11, 12, 21, 22, 23, 24])
    sgl_kernel.assign_req_to_token_pool_cpu(rows, table, starts, ends, slots, 10)
    assert table[2].tolist() == [0, 0, 0, 11, 12, 0, 0, 0, 0, 0]
    assert table[0].tolist() == [21, 22, 23, 24, 0, 0, 0, 0, 0, 0]
    read = torch.zeros(6, dtype=torch.int64)
    sgl_kernel.assign_extend_cache_locs_cpu(rows, table, starts, ends, read, 10)
    assert torch.equal(read, slots)
    drafts = torch.zeros(4, dtype=torch.int64)
    sgl_kernel.assign_draft_cache_locs_contiguous_cpu(rows, table, starts, drafts, 10, 2, 1)
    assert drafts.tolist() == [11, 12, 21, 22]


def test_each_branch_gets_its_own_draft_slots() -> None:
    import sgl_kernel

    table = torch.arange(40, dtype=torch.int32).view(2, 20)
    metadata = sgl_kernel.build_draft_decode_metadata_cpu(
        table, torch.tensor([1, 0]), torch.tensor([5, 3]), 2, 3, 20
    )
    expected = {
        0: [*range(20, 25), 25, 26, 27],
        1: [*range(20, 25), 28, 29, 30],
        2: [*range(3), 3, 4, 5],
        3: [*range(3), 6, 7, 8],
    }
    for row, slots in expected.items():
        assert metadata[row, : len(slots)].tolist() == slots


def test_cached_keys_are_copied_in_every_layer_all_read_before_any_is_written() -> None:
    import sgl_kernel

    layers = [torch.randn(5, 3), torch.randn(5, 7)]
    expected = [layer.clone() for layer in layers]
    for layer in expected:
        layer[torch.tensor([0, 1])] = layer[torch.tensor([1, 4])]
    sgl_kernel.copy_all_layer_kv_cache_cpu(
        torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64),
        torch.tensor([layer.stride(0) * ctypes.sizeof(ctypes.c_float) for layer in layers]),
        torch.tensor([0, 1]),
        torch.tensor([1, 4]),
    )
    for layer, wanted in zip(layers, expected, strict=True):
        assert torch.equal(layer, wanted)


def build_tree(parents: list[int], selected: list[int], topk: int, depth: int) -> dict[str, list]:
    import sgl_kernel

    size = len(selected) + 1
    mask = torch.ones(size * size, dtype=torch.bool)
    positions = torch.zeros(size, dtype=torch.int64)
    index, child, sibling = (torch.full((1, size), -1) for _ in range(3))
    sgl_kernel.build_tree_kernel_efficient_cpu(
        torch.tensor([parents]), torch.tensor([selected]), torch.tensor([10]), mask, positions,
        index, child, sibling, topk, depth, size, 1,
    )  # fmt: skip
    return {
        "mask": mask.view(size, size).int().tolist(),
        "positions": positions.tolist(),
        "index": index[0].tolist(),
        "child": child[0].tolist(),
        "sibling": sibling[0].tolist(),
    }


def test_a_chain_is_a_tree_without_branches() -> None:
    tree = build_tree([-1, 0, 1], [0, 1, 2], 1, 3)
    assert tree["positions"] == [10, 11, 12, 13]
    assert tree["child"] == [1, 2, 3, -1]
    assert tree["sibling"] == [-1, -1, -1, -1]
    assert tree["mask"] == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


def test_a_tree_links_children_and_siblings_in_order() -> None:
    # Candidates 0 and 1 grow from the root; group 1 (candidates 2, 3) from 0, group 2 from 1.
    tree = build_tree([-1, 0, 1], [0, 1, 2, 5], 2, 2)
    assert tree["positions"] == [10, 11, 11, 12, 12]
    assert tree["child"] == [1, 3, 4, -1, -1]
    assert tree["sibling"] == [-1, 2, -1, -1, -1]
    assert tree["mask"] == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]


def verify(choices: list[int], longest: int = 3) -> tuple[list[int], int, list[int]]:
    """Verify the tree root 50 -> (51 -> 53), (52 -> 54)."""
    import sgl_kernel

    predicts = torch.full((5,), -7, dtype=torch.int32)
    accepted = torch.full((1, longest), -1, dtype=torch.int32)
    count = torch.zeros(1, dtype=torch.int32)
    sgl_kernel.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=count,
        candidates=torch.tensor([[50, 51, 52, 53, 54]]),
        retrive_index=torch.arange(5).view(1, 5),
        retrive_next_token=torch.tensor([[1, 3, 4, -1, -1]]),
        retrive_next_sibling=torch.tensor([[-1, 2, -1, -1, -1]]),
        target_predict=torch.tensor([choices]),
    )
    return accepted[0].tolist(), int(count[0]), predicts.tolist()


@pytest.mark.parametrize(
    ("choices", "accepted", "predicted"),
    [
        ([52, 0, 54, 0, 60], [0, 2, 4], {0: 52, 2: 54, 4: 60}),
        ([51, 99, 54, 0, 0], [0, 1, -1], {0: 51, 1: 99}),
        ([99, 53, 54, 0, 0], [0, -1, -1], {0: 99}),
    ],
)
def test_verification_accepts_what_the_target_would_have_chosen(
    choices: list[int], accepted: list[int], predicted: dict[int, int]
) -> None:
    index, count, predicts = verify(choices)
    assert index == accepted
    assert count == len(predicted) - 1
    assert {row: token for row, token in enumerate(predicts) if token != -7} == predicted


def test_accepted_tokens_and_slots_are_gathered() -> None:
    import sgl_kernel

    bonus = torch.zeros(2, dtype=torch.int64)
    sgl_kernel.fill_bonus_tokens_cpu(
        torch.tensor([[7, 8, 9], [4, 5, 6]]), torch.tensor([3, 1]), bonus, 3
    )
    assert bonus.tolist() == [9, 4]
    slots = torch.zeros(4, dtype=torch.int64)
    sgl_kernel.fill_accept_out_cache_loc_cpu(
        torch.tensor([0, 2, -1, 3, -1]), torch.tensor([10, 11, 12, 13]), slots
    )
    assert slots[:3].tolist() == [10, 12, 13]


@pytest.mark.parametrize(
    ("select", "expected"), [(None, [2, 3, 90, 5, 91]), ([1, 3], [2, 90, 3, 91, 5])]
)
def test_input_ids_move_one_place_to_the_left(
    select: list[int] | None, expected: list[int]
) -> None:
    import sgl_kernel

    ids = torch.tensor([1, 2, 3, 4, 5])
    sgl_kernel.rotate_input_ids_cpu(
        ids,
        torch.tensor([0, 3]),
        torch.tensor([3, 2]),
        torch.tensor([[90], [91]]),
        None if select is None else torch.tensor(select),
    )
    assert ids.tolist() == expected


def test_threads_follow_the_given_cpus_and_the_users_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.ops.sgl_kernel.init_cpu_threads_env("0-2,5")
    torch.ops.sgl_kernel.init_cpu_threads_env([0, 1])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torch.ops.sgl_kernel.init_cpu_threads_env("0-2,5")
    assert chosen == [4, 2, 1]


def test_a_missing_operator_is_named_wherever_it_is_met() -> None:
    import sgl_kernel

    with pytest.raises(AttributeError, match="fused_experts_cpu"):
        torch.ops.sgl_kernel.fused_experts_cpu  # noqa: B018
    assert not hasattr(torch.ops.sgl_kernel, "fused_qk_norm_cpu")
    with pytest.raises(NotImplementedError, match="flash_attn_varlen_func"):
        torch.ops.sgl_kernel.flash_attn_varlen_func(1, 2)
    with pytest.raises(ImportError, match="merge_state_v2"):
        from sgl_kernel import merge_state_v2  # noqa: F401
    assert "plain-torch" in sgl_kernel.__doc__.lower()


def test_spawned_processes_are_prepared_like_their_parent(tmp_path: Path) -> None:
    """Each process of a server gets the operators, whatever started it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing, os, sys\n"
        "from drafter_sglang_cpu import server_process\n"
        "server_process.prepare()\n"
        "def report():\n"
        "    import sgl_kernel, torch\n"
        "    from sglang.srt.utils import cpu_has_amx_support, is_cpu\n"
        "    print(is_cpu(), cpu_has_amx_support(), sgl_kernel.__file__)\n"
        "if __name__ == '__main__':\n"
        "    child = multiprocessing.get_context('spawn').Process(target=report)\n"
        "    child.start(); child.join(); sys.exit(child.exitcode)\n"
    )
    ended = subprocess.run(
        [sys.executable, program],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(STAND_INS.parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["True", "True", str(STAND_INS / "sgl_kernel" / "__init__.py")]
