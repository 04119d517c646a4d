"""Draft trees: building, greedy verification, what was accepted.

A tree is a request's N draft tokens, token 0 being the last accepted one. ``next_token`` gives a
token's first child and ``next_sibling`` its next sibling by position in the tree, -1 for none.
The trees are small (at most a few dozen tokens), so that they are walked as Python lists.
"""

from __future__ import annotations

import torch

FULL_MASK = 0
QLEN_ONLY = 1


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Fill in the tree of each request from the drafter's choices.

    Parameters
    ----------
    parent_list : torch.Tensor
        requests x entries: for each group of ``topk`` candidates the candidate they grew from.
    selected_index : torch.Tensor
        requests x (N - 1): the candidates chosen as draft tokens 1 to N - 1, in order.
    verified_seq_len : torch.Tensor
        Committed tokens of each request.
    tree_mask : torch.Tensor
        Flat, bool. Full: N rows of committed + N entries a request; else N x N a request. Only
        the N x N entries between draft tokens are written: a token sees itself, its ancestors
        and token 0.
    positions : torch.Tensor
        Written: the position of each draft token in its sequence.
    retrieve_index, retrieve_next_token, retrieve_next_sibling : torch.Tensor
        Written, requests x N: row of each token in the batch, first child, next sibling.
    topk, depth, draft_token_num : int
        Candidates for each token, drafting steps, N.
    tree_mask_mode : int
        `FULL_MASK` or `QLEN_ONLY`.

    Raises
    ------
    NotImplementedError
        For a bit-packed mask.
    """
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(
            "sgl_kernel operator 'build_tree_kernel_efficient_cpu' on the CPU does not support "
            f"tree_mask_mode={tree_mask_mode}"
        )
    size = draft_token_num
    all_parents, all_selected = parent_list.tolist(), selected_index.tolist()
    requests = len(all_selected)
    next_tokens, next_siblings, all_positions = [], [], []
    mask_start = 0
    for request, committed in enumerate(verified_seq_len.tolist()):
        parents = _tree_parents(all_parents[request], all_selected[request], topk, size)
        child, sibling = [-1] * size, [-1] * size
        for token in range(size - 1, 0, -1):
            parent = parents[token]
            sibling[token], child[parent] = child[parent], token
        next_tokens.append(child)
        next_siblings.append(sibling)
        sees = [[False] * size for _ in range(size)]
        for token in range(size):
            ancestor, above = token, 0
            while ancestor and above < depth:
                sees[token][ancestor] = True
                ancestor = parents[ancestor]
                above += 1
            sees[token][0] = True
            all_positions.append(committed + above)
        row = size + (committed if tree_mask_mode == FULL_MASK else 0)
        mask = tree_mask[mask_start : mask_start + size * row].view(size, row)
        mask[:, row - size :] = torch.tensor(sees, dtype=tree_mask.dtype)
        mask_start += size * row
    positions.copy_(torch.tensor(all_positions, dtype=positions.dtype))
    shape = (requests, size)
    retrieve_index.copy_(torch.arange(requests * size).view(shape))
    retrieve_next_token.copy_(torch.tensor(next_tokens, dtype=torch.int64).view(shape))
    retrieve_next_sibling.copy_(torch.tensor(next_siblings, dtype=torch.int64).view(shape))


def _tree_parents(parent_list: list[int], selected: list[int], topk: int, size: int) -> list[int]:
    place = {candidate: token + 1 for token, candidate in reversed(list(enumerate(selected)))}
    parents = [0] * size
    for token in range(1, size):
        group = selected[token - 1] // topk
        parents[token] = place[parent_list[group]] if group else 0
    return parents


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Accept, from the root down, the draft tokens the target would have chosen itself.

    Parameters
    ----------
    predicts : torch.Tensor
        Written, flat: at the row of each accepted token, the target's token after it.
    accept_index : torch.Tensor
        Written, requests x (longest chain): rows of the accepted tokens, the root's first; the
        caller fills in the value for "none".
    accept_token_num : torch.Tensor
        Written, requests: accepted tokens without the root.
    candidates, retrive_index, retrive_next_token, retrive_next_sibling : torch.Tensor
        requests x N: the trees.
    target_predict : torch.Tensor
        requests x N: the target's choice after each token of the tree.
    """
    longest = accept_index.shape[1]
    rows, tokens = retrive_index.tolist(), candidates.tolist()
    children, siblings = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    choices = target_predict.flatten().tolist()
    predicted_rows, counts = [], []
    for request, tree in enumerate(tokens):
        accepted = [rows[request][0]]
        token = 0
        while len(accepted) < longest:
            wanted = choices[accepted[-1]]
            token = children[request][token]
            while token != -1 and tree[token] != wanted:
                token = siblings[request][token]
            if token == -1:
                break
            accepted.append(rows[request][token])
        accept_index[request, : len(accepted)] = torch.tensor(accepted, dtype=accept_index.dtype)
        predicted_rows += accepted
        counts.append(len(accepted) - 1)
    accept_token_num.copy_(torch.tensor(counts, dtype=accept_token_num.dtype))
    index = torch.tensor(predicted_rows, dtype=torch.int64)
    predicts[index] = target_predict.flatten()[index].to(predicts.dtype)


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
) -> None:
    """Copy each request's last accepted token; ``accept_lens`` counts it."""
    requests = accept_lens.shape[0]
    last = torch.arange(requests) * accept_stride + accept_lens - 1
    bonus_tokens[:requests] = accept_tokens.flatten()[last].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor,
    out_cache_loc: torch.Tensor,
    accept_out_cache_loc: torch.Tensor,
) -> None:
    """Gather the slots of the accepted tokens (index not -1), in order, at the front."""
    accepted = accept_index[accept_index > -1].to(torch.int64)
    accept_out_cache_loc[: accepted.numel()] = out_cache_loc[accepted].to(
        accept_out_cache_loc.dtype
    )


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None,
) -> None:
    """Move each request's tokens one place to the left and put its new token at the end.

    With ``select_index`` the new token goes to that row instead.
    """
    new_tokens = topk_index.flatten().tolist()
    spans = zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)
    for request, (start, length) in enumerate(spans):
        if length == 0:
            continue
        end = start + length
        input_ids[start : end - 1] = input_ids[start + 1 : end].clone()
        last = end - 1 if select_index is None else int(select_index[request])
        input_ids[last] = new_tokens[request]
