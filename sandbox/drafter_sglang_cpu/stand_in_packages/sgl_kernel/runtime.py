"""Threads and process groups of a CPU server."""

from __future__ import annotations

import os

import torch

from .missing import unsupported


def init_cpu_threads_env(cpu_ids: str | list[int]) -> None:
    """Use one thread for each CPU SGLang gives this process, unless OMP_NUM_THREADS says less.

    Parameters
    ----------
    cpu_ids : str or list of int
        CPUs, as a list or as ``0-3,8``.
    """
    count = len(cpu_ids) if isinstance(cpu_ids, list) else _count(cpu_ids)
    wanted = os.environ.get("OMP_NUM_THREADS")
    torch.set_num_threads(min(count, int(wanted)) if wanted else count)


def initialize(size: int, rank: int) -> None:
    """Prepare the shared memory of tensor-parallel processes; here one process only."""
    if size != 1:
        raise unsupported("initialize", "tp_size", size)


def _count(cpu_ids: str) -> int:
    total = 0
    for part in cpu_ids.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total
