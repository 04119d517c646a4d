"""Speed of speculative decoding on this CPU, as ratios within one run.

``python tests/bench/bench_sglang_cpu.py --target DIR --drafter DIR --prompts FILE.jsonl``

All servers run from the start and take turns, so that whatever else the machine does meets each
of them; the medians over the rounds are compared. Also printed: the scheduler's CPU time a step,
which depends less on the machine's other work.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from sglang_server import SglangServer, running_sglang, speculation


@dataclass
class Measured:
    """Results of one server, a value for each round."""

    depth: int
    tokens_per_second: list[float] = field(default_factory=list)
    cpu_ms_per_step: list[float] = field(default_factory=list)
    acceptance_length: float = 1.0
    outputs: list[list[int]] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return statistics.median(self.tokens_per_second)


def measure(
    target: Path,
    drafter: Path,
    prompts: Sequence[Sequence[int]],
    depths: Sequence[int],
    *,
    concurrency: int = 1,
    new_tokens: int = 64,
    rounds: int = 3,
    threads: int = 2,
    arguments: Sequence[str] = (),
) -> list[Measured]:
    """Measure the baseline (depth 0), then each depth.

    Returns
    -------
    list of Measured
        The baseline first.
    """
    with ExitStack() as servers, tempfile.TemporaryDirectory() as logs:
        running = [
            (
                Measured(depth),
                servers.enter_context(
                    running_sglang(
                        target,
                        Path(logs),
                        [
                            "--sleep-on-idle",
                            *arguments,
                            *(speculation(drafter, depth) if depth else ()),
                        ],
                        {"OMP_NUM_THREADS": str(threads)},
                        startup_s=300,
                    )
                ),
            )
            for depth in (0, *depths)
        ]
        for _, server in running:
            server.generate(prompts[:1], 8)
        for _ in range(rounds):
            for measured, server in running:
                _one_round(measured, server, prompts, concurrency, new_tokens)
    return [measured for measured, _ in running]


def _one_round(
    measured: Measured,
    server: SglangServer,
    prompts: Sequence[Sequence[int]],
    concurrency: int,
    new_tokens: int,
) -> None:
    scheduler = _scheduler(server)
    cpu_before, before = sum(scheduler.cpu_times()[:2]), time.perf_counter()
    with ThreadPoolExecutor(concurrency) as requests:
        answers = list(
            requests.map(lambda prompt: server.generate([prompt], new_tokens)[0], prompts)
        )
    seconds = time.perf_counter() - before
    cpu_s = sum(scheduler.cpu_times()[:2]) - cpu_before
    measured.outputs = [answer["output_ids"] for answer in answers]
    tokens = sum(len(output) for output in measured.outputs)
    steps = sum(answer["meta_info"].get("spec_verify_ct", 0) for answer in answers) or tokens
    measured.tokens_per_second.append(tokens / seconds)
    measured.cpu_ms_per_step.append(1e3 * cpu_s * concurrency / steps)
    measured.acceptance_length = tokens / steps


def _scheduler(server: SglangServer) -> psutil.Process:
    for process in psutil.Process(server.pid).children(recursive=True):
        if "scheduler" in process.name():
            return process
    raise AssertionError(f"no scheduler among the processes of {server.url}")


def table(results: Sequence[Measured]) -> str:
    """Return the results as lines of text."""
    baseline = results[0]
    lines = ["draft tokens  tokens/s  ratio  acceptance  CPU ms/step  equal to baseline"]
    for result in results:
        equal = sum(a == b for a, b in zip(result.outputs, baseline.outputs, strict=True))
        lines.append(
            f"{result.depth or 'baseline':>12}  {result.speed:8.1f}"
            f"  {result.speed / baseline.speed:5.2f}  {result.acceptance_length:10.3f}"
            f"  {statistics.median(result.cpu_ms_per_step):11.1f}"
            f"  {equal} of {len(result.outputs)}"
        )
    return "\n".join(lines)


def read_prompts(file: Path, target: Path, limit: int) -> list[list[int]]:
    """Read prompts and turn them into token ids with the target's chat template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    rows = [json.loads(line) for line in file.read_text().splitlines() if line.strip()]
    return [
        tokenizer.apply_chat_template(
            row.get("messages") or [{"role": "user", "content": row["prompt"]}],
            add_generation_prompt=True,
            return_dict=False,
        )
        for row in rows[:limit]
    ]


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--depths", default="2,4,8")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    results = measure(
        options.target,
        options.drafter,
        read_prompts(options.prompts, options.target, options.requests),
        [int(depth) for depth in options.depths.split(",")],
        concurrency=options.concurrency,
        new_tokens=options.new_tokens,
        rounds=options.rounds,
        threads=options.threads,
    )
    print(table(results))


if __name__ == "__main__":
    main()
