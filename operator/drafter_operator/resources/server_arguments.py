"""The arguments of ``sglang.launch_server`` for each candidate.

Source: ``sglang.srt.server_args`` of SGLang 0.5.23.
"""

from __future__ import annotations

from drafter_operator.resources import names
from drafter_operator.run import CandidateId, Run

SERVER_COMMAND = ("python3", "-m", "sglang.launch_server")


def served_name(run: Run) -> str:
    """Return the model's name in the OpenAI API."""
    return run.spec.target.served_name or run.name


def server_arguments(run: Run, candidate: CandidateId) -> list[str]:
    """Return the server's arguments, without the command.

    The limits are the same for every candidate: speculation would otherwise lower
    ``--max-running-requests`` to 48 by itself, and the baseline would have an advantage.
    """
    target, serving = run.spec.target, run.spec.serving
    arguments = [
        *("--model-path", names.target_reference(run)),
        *("--served-model-name", served_name(run)),
        *("--host", "0.0.0.0", "--port", str(names.SERVER_PORT)),
        "--enable-metrics",
        *("--dtype", str(serving.dtype)),
        *("--max-running-requests", str(serving.maximum_running_requests)),
    ]
    if target.revision is not None:
        arguments += ["--revision", target.revision]
    if target.trust_remote_code:
        arguments.append("--trust-remote-code")
    if serving.tensor_parallel_size:
        arguments += ["--tp-size", str(serving.tensor_parallel_size)]
    else:
        arguments += ["--device", "cpu"]
    arguments += _speculation(run, candidate)
    return [*arguments, *serving.extra_arguments]


def _speculation(run: Run, candidate: CandidateId) -> list[str]:
    """Return the flags of speculative decoding; SGLang needs all of them or guesses."""
    if not candidate.depth:
        return []
    return [
        # EAGLE instead of EAGLE3 would skip the fc layer and accept nothing.
        *("--speculative-algorithm", "EAGLE3"),
        *("--speculative-draft-model-path", str(names.Paths(run).drafter)),
        # With top-k 1 the root and one token a step make the draft tokens.
        *("--speculative-num-steps", str(candidate.depth - 1)),
        *("--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(candidate.depth)),
    ]
