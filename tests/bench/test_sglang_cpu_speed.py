"""``make bench``: a drafter must beat its baseline on this machine.

``DRAFTER_BENCH_TARGET``, ``DRAFTER_BENCH_DRAFTER`` and ``DRAFTER_BENCH_PROMPTS`` name the files,
for instance those a quick start has left.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench_sglang_cpu import measure, read_prompts, table

NAMES = ("DRAFTER_BENCH_TARGET", "DRAFTER_BENCH_DRAFTER", "DRAFTER_BENCH_PROMPTS")


@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    not all(name in os.environ for name in NAMES), reason=f"set {', '.join(NAMES)} to measure"
)
def test_the_best_depth_beats_the_baseline_at_concurrency_1() -> None:
    target, drafter, prompts = (Path(os.environ[name]) for name in NAMES)
    results = measure(target, drafter, read_prompts(prompts, target, 5), (2, 4))
    print(f"\n{table(results)}")
    baseline, *depths = results
    assert all(result.outputs == baseline.outputs for result in depths)
    assert max(result.speed for result in depths) > baseline.speed
