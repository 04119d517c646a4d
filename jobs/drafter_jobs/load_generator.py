"""Send prompts to a server with a fixed number of requests under way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from drafter_jobs.sglang_client import Generation, RequestFailedError, SGLangClient


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt as the server gets it."""

    id: str
    token_ids: Sequence[int]


@dataclass(frozen=True)
class RequestOutcome:
    """What became of one request: either ``generation`` or ``error`` is set."""

    prompt: TokenizedPrompt
    generation: Generation | None
    error: str | None


@dataclass(frozen=True)
class LoadRun:
    """All requests of one concurrency.

    Attributes
    ----------
    outcomes
        In the order of the prompts.
    seconds
        From the start of the first request to the end of the last.
    """

    outcomes: list[RequestOutcome]
    seconds: float


async def run_load(
    client: SGLangClient,
    prompts: Sequence[TokenizedPrompt],
    concurrency: int,
    maximum_new_tokens: int,
    finished: Callable[[bool], None] = lambda completed: None,
) -> LoadRun:
    """Send every prompt once, in order, ``concurrency`` at a time.

    Parameters
    ----------
    client
        Of the server.
    prompts
        What to send.
    concurrency
        Requests under way at any moment, until the prompts run out.
    maximum_new_tokens
        Limit of each output.
    finished
        Called after each request with whether it completed.
    """
    outcomes: list[RequestOutcome | None] = [None] * len(prompts)
    # One iterator for all workers: each takes the next prompt as soon as it is free.
    queue = iter(enumerate(prompts))

    async def work() -> None:
        for index, prompt in queue:
            try:
                generation = await client.generate(prompt.token_ids, maximum_new_tokens)
                outcomes[index] = RequestOutcome(prompt, generation, None)
            except RequestFailedError as error:
                outcomes[index] = RequestOutcome(prompt, None, str(error))
            finished(outcomes[index].error is None)  # type: ignore[union-attr]

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(prompts))):
            group.create_task(work())
    seconds = time.perf_counter() - started
    return LoadRun([outcome for outcome in outcomes if outcome is not None], seconds)
