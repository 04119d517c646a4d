"""Client of SGLang's native HTTP API.

Source: ``entrypoints/http_server.py``, ``managers/tokenizer_manager.py`` and
``observability/metrics_collector.py`` of sglang 0.5.23.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from drafter_jobs.acceptance import Counters, RequestAcceptance

POLL_SECONDS = 0.5
FLUSH_TIMEOUT_SECONDS = 30.0
COUNTERS_SETTLE_SECONDS = 5.0

GENERATED_TOKENS_METRIC = "sglang:generation_tokens_total"
VERIFY_CALLS_METRIC = "sglang:spec_verify_calls_total"


class ServerGoneError(Exception):
    """The server does not answer, or not as SGLang does; the message says what happened."""


class NotReadyError(Exception):
    """The server was not ready in time; the message says what it answered last."""


class RequestFailedError(Exception):
    """One request failed; the message is the server's or the connection's."""


@dataclass(frozen=True)
class ServerInfo:
    """What a server says about itself.

    Attributes
    ----------
    algorithm
        Of speculation; ``None`` without.
    draft_tokens, steps, top_k
        Settings of speculation; ``None`` without.
    limits
        Settings that have to be equal for two servers to be comparable.
    version
        Of SGLang.
    identity
        Differs between two starts of a server.
    """

    algorithm: str | None
    draft_tokens: int | None
    steps: int | None
    top_k: int | None
    limits: dict[str, Any]
    version: str
    identity: str


LIMIT_FIELDS = (
    "model_path",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "tp_size",
    "dp_size",
    "context_length",
    "max_running_requests",
)
"""Arguments that change throughput or output and must not differ between candidates."""


@dataclass(frozen=True)
class Generation:
    """One finished request.

    Attributes
    ----------
    output_ids
        Output token ids.
    text
        The same, as the server decoded it.
    finish_reason
        ``stop`` or ``length``.
    first_token_seconds
        From sending the request to the first token.
    token_seconds
        Inter-token latency of each further token; tokens that arrive together share their gap.
    total_seconds
        From sending the request to its end.
    prompt_tokens
        As the server counts them.
    acceptance
        Zeros without speculation.
    """

    output_ids: list[int]
    text: str
    finish_reason: str
    first_token_seconds: float
    token_seconds: list[float]
    total_seconds: float
    prompt_tokens: int
    acceptance: RequestAcceptance


class SGLangClient:
    """Talks to one server.

    Parameters
    ----------
    url
        ``http://host:port``.
    session
        Whose lifetime the caller manages.
    request_timeout_seconds
        Limit of one generation.
    """

    def __init__(
        self, url: str, session: aiohttp.ClientSession, request_timeout_seconds: float
    ) -> None:
        self._url = url.rstrip("/")
        self._session = session
        self._generate_timeout = aiohttp.ClientTimeout(total=request_timeout_seconds)
        self._short_timeout = aiohttp.ClientTimeout(total=60)

    async def wait_until_ready(self, timeout_seconds: float) -> None:
        """Wait for ``/ready``.

        Raises
        ------
        NotReadyError
            If the time is up.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            answer = await self._readiness()
            if answer is None:
                return
            if time.monotonic() >= deadline:
                raise NotReadyError(
                    f"{self._url} was not ready within {timeout_seconds:g} s; last: {answer}"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _readiness(self) -> str | None:
        try:
            async with self._session.get(
                f"{self._url}/ready", timeout=aiohttp.ClientTimeout(total=10)
            ) as response:
                if response.status == 200:
                    return None
                return f"/ready answered {response.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return _describe(error)

    async def server_info(self) -> ServerInfo:
        """Read ``/server_info``.

        Raises
        ------
        ServerGoneError
            If there is no such answer.
        """
        answer = await self._get_text("/server_info")
        try:
            info = json.loads(answer)
            limits = {name: info[name] for name in LIMIT_FIELDS if name in info}
            start = json.dumps([info.get("startup_time"), info.get("random_seed")], sort_keys=True)
        except (ValueError, TypeError) as error:
            raise ServerGoneError(f"/server_info is not what SGLang answers: {error}") from None
        return ServerInfo(
            algorithm=info.get("speculative_algorithm"),
            draft_tokens=info.get("speculative_num_draft_tokens"),
            steps=info.get("speculative_num_steps"),
            top_k=info.get("speculative_eagle_topk"),
            limits=limits,
            version=str(info.get("version", "unknown")),
            identity=hashlib.sha256(start.encode()).hexdigest(),
        )

    async def flush_cache(self) -> None:
        """Empty the prefix cache, so that no candidate finds another's prompts in it.

        Raises
        ------
        ServerGoneError
            If the server refuses.
        """
        try:
            async with self._session.post(
                f"{self._url}/flush_cache",
                params={"timeout": str(FLUSH_TIMEOUT_SECONDS)},
                timeout=self._short_timeout,
            ) as response:
                if response.status == 200:
                    return
                text = (await response.text()).strip()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerGoneError(f"/flush_cache: {_describe(error)}") from None
        raise ServerGoneError(f"/flush_cache answered {response.status}: {text[:200]}")

    async def counters(self) -> Counters:
        """Read the totals from ``/metrics``; a total not yet present is zero.

        Raises
        ------
        ServerGoneError
            If the server has no metrics.
        """
        totals = {GENERATED_TOKENS_METRIC: 0.0, VERIFY_CALLS_METRIC: 0.0}
        text = await self._get_text("/metrics")
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name in totals:
                        totals[sample.name] += sample.value
        except ValueError as error:
            raise ServerGoneError(f"/metrics is not in Prometheus' format: {error}") from None
        return Counters(
            generated_tokens=int(totals[GENERATED_TOKENS_METRIC]),
            verify_calls=int(totals[VERIFY_CALLS_METRIC]),
        )

    async def settled_counters(self, before: Counters, tokens: int) -> Counters:
        """Read the totals once they have risen by the tokens of finished requests.

        The server may count a request a moment after answering it.

        Parameters
        ----------
        before
            An earlier reading.
        tokens
            Output tokens since.

        Returns
        -------
        Counters
            The last reading, if they do not get there in time.
        """
        deadline = time.monotonic() + COUNTERS_SETTLE_SECONDS
        while True:
            counters = await self.counters()
            settled = counters.since(before).generated_tokens >= tokens
            if settled or time.monotonic() >= deadline:
                return counters
            await asyncio.sleep(POLL_SECONDS)

    async def generate(self, prompt_ids: Sequence[int], maximum_new_tokens: int) -> Generation:
        """Generate greedily, stopping at the target's end of text.

        Raises
        ------
        RequestFailedError
            If the request does not finish with its output whole.
        """
        payload = {
            "input_ids": list(prompt_ids),
            "sampling_params": {"temperature": 0.0, "max_new_tokens": maximum_new_tokens},
            "stream": True,
        }
        started = time.perf_counter()
        progress = _StreamedOutput(started)
        try:
            async with self._session.post(
                f"{self._url}/generate", json=payload, timeout=self._generate_timeout
            ) as response:
                if response.status != 200:
                    text = (await response.text()).strip()
                    raise RequestFailedError(f"/generate answered {response.status}: {text[:200]}")
                async for event in _events(response):
                    progress.take(event, time.perf_counter())
        except TimeoutError:
            raise RequestFailedError(f"no end within {self._generate_timeout.total:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise RequestFailedError(_describe(error)) from None
        return progress.generation(time.perf_counter())

    async def _get_text(self, path: str) -> str:
        try:
            async with self._session.get(
                f"{self._url}{path}", timeout=self._short_timeout
            ) as response:
                text = await response.text()
                if response.status == 200:
                    return text
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServerGoneError(f"{path}: {_describe(error)}") from None
        raise ServerGoneError(f"{path} answered {response.status}: {text.strip()[:200]}")


class _StreamedOutput:
    """Gathers the events of one request."""

    def __init__(self, started: float) -> None:
        self._started = started
        self._last_token = started
        self._first_token_seconds: float | None = None
        self._token_seconds: list[float] = []
        self._output_ids: list[int] = []
        self._text = ""
        self._meta: dict[str, Any] = {}
        self._ended = False

    def take(self, event: str, now: float) -> None:
        if event == "[DONE]":
            self._ended = True
            return
        try:
            data = json.loads(event)
        except ValueError:
            raise RequestFailedError(f"an event is not JSON: {event[:100]!r}") from None
        if "error" in data:
            raise RequestFailedError(str(data["error"])[:300])
        self._meta = data.get("meta_info") or {}
        before = len(self._output_ids)
        ids = [int(token) for token in data.get("output_ids") or []]
        completed = int(self._meta.get("completion_tokens", len(ids)))
        # A server started with incremental output sends each token once, others all so far.
        incremental = len(ids) != completed
        self._output_ids = self._output_ids + ids if incremental else ids
        text = str(data.get("text") or "")
        self._text = self._text + text if incremental else text
        new = len(self._output_ids) - before
        if new <= 0:
            return
        if self._first_token_seconds is None:
            self._first_token_seconds = now - self._started
        else:
            self._token_seconds += [(now - self._last_token) / new] * new
        self._last_token = now

    def generation(self, now: float) -> Generation:
        reason = self._meta.get("finish_reason")
        if not self._ended or not isinstance(reason, dict):
            raise RequestFailedError(
                f"the stream ended after {len(self._output_ids)} tokens without a finish reason"
            )
        kind = str(reason.get("type"))
        if kind not in {"stop", "length"}:
            raise RequestFailedError(f"finish reason {kind}: {reason.get('message', '')}"[:300])
        completed = int(self._meta.get("completion_tokens", -1))
        if completed != len(self._output_ids) or self._first_token_seconds is None:
            raise RequestFailedError(
                f"the server counts {completed} output tokens, {len(self._output_ids)} arrived"
            )
        return Generation(
            output_ids=self._output_ids,
            text=self._text,
            finish_reason=kind,
            first_token_seconds=self._first_token_seconds,
            token_seconds=self._token_seconds,
            total_seconds=now - self._started,
            prompt_tokens=int(self._meta.get("prompt_tokens", 0)),
            acceptance=RequestAcceptance(
                tokens=completed,
                verify_calls=int(self._meta.get("spec_verify_ct", 0)),
                correct_drafts=int(self._meta.get("spec_num_correct_drafts", 0)),
                proposed_drafts=int(self._meta.get("spec_num_proposed_drafts", 0)),
            ),
        )


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[str]:
    # Events are split here and not by the stream's readline, whose length limit a long
    # cumulative event exceeds.
    pending = b""
    async for chunk in response.content.iter_any():
        pending += chunk
        while b"\n\n" in pending:
            event, pending = pending.split(b"\n\n", 1)
            line = event.strip()
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip().decode()


def _describe(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
