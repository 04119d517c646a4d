"""A test double that answers the documented part of SGLang's HTTP API, without any model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


def plain_output(prompt_ids: Sequence[int], length: int) -> list[int]:
    """Tokens that depend on the prompt and do not loop."""
    state = sum((index + 1) * token for index, token in enumerate(prompt_ids))
    output = []
    for index in range(length):
        state = (state * 1103515245 + 12345 + index) % 2**31
        output.append(state >> 8)
    return output


@dataclass
class FakeSGLang:
    """Settings, and what was asked of it."""

    depth: int = 0
    algorithm: str | None = None
    accepted: int = 3
    """Output tokens of each verify call."""
    output: Callable[[Sequence[int], int], list[int]] = plain_output
    incremental: bool = False
    not_ready_answers: int = 0
    metrics: bool = True
    fail_request: Callable[[int], str | None] = lambda number: None
    """Given the number of the request from 0: how it fails ("error", "cut", "status")."""
    restart_at_request: int | None = None
    limits: dict[str, Any] = field(default_factory=lambda: {"max_running_requests": 8})

    prompts: list[list[int]] = field(default_factory=list)
    flushes: int = 0
    running: int = 0
    most_running: int = 0
    starts: int = 1
    generated_tokens: int = 0
    verify_calls: int = 0

    async def ready(self, request: web.Request) -> web.Response:
        self.not_ready_answers -= 1
        return web.Response(status=503 if self.not_ready_answers >= 0 else 200)

    async def server_info(self, request: web.Request) -> web.Response:
        speculation = {
            "speculative_algorithm": self.algorithm,
            "speculative_num_draft_tokens": self.depth or None,
            "speculative_num_steps": self.depth - 1 if self.depth else None,
            "speculative_eagle_topk": 1 if self.depth else None,
        }
        start = {"startup_time": {"tokenizer_e2e": float(self.starts)}, "random_seed": 1}
        return web.json_response({"version": "0.5.23", **self.limits, **speculation, **start})

    async def flush_cache(self, request: web.Request) -> web.Response:
        if self.running:
            return web.Response(status=400, text="requests are running")
        self.flushes += 1
        return web.Response(text="Cache flushed.")

    async def read_metrics(self, request: web.Request) -> web.Response:
        if not self.metrics:
            return web.Response(status=404)
        labels = '{model_name="m",engine_type="unified"}'
        lines = [
            "# TYPE sglang:generation_tokens_total counter",
            f"sglang:generation_tokens_total{labels} {float(self.generated_tokens)}",
        ]
        if self.verify_calls:
            lines += [
                "# TYPE sglang:spec_verify_calls_total counter",
                f"sglang:spec_verify_calls_total{labels} {float(self.verify_calls)}",
            ]
        return web.Response(text="\n".join(lines) + "\n")

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.prompts)
        self.prompts.append(body["input_ids"])
        if number == self.restart_at_request:
            self.starts += 1
            self.generated_tokens = self.verify_calls = 0
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._stream(request, body, self.fail_request(number))
        finally:
            self.running -= 1

    async def _stream(
        self, request: web.Request, body: dict[str, Any], failure: str | None
    ) -> web.StreamResponse:
        if failure == "status":
            return web.Response(status=500, text="out of memory")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        assert body["stream"] and body["sampling_params"]["temperature"] == 0
        tokens = self.output(body["input_ids"], body["sampling_params"]["max_new_tokens"])
        sent = calls = 0
        while sent < len(tokens):
            step = 1 if sent == 0 else self.accepted if self.depth else 1
            calls += 1 if self.depth and sent else 0
            before, sent = sent, min(len(tokens), sent + step)
            if failure == "cut" and sent > 2:
                return response
            if failure == "error" and sent > 2:
                await response.write(b'data: {"error": {"message": "aborted"}}\n\n')
                break
            ended = sent == len(tokens)
            meta: dict[str, Any] = {
                "completion_tokens": sent,
                "prompt_tokens": len(body["input_ids"]),
                "finish_reason": {"type": "length", "length": sent} if ended else None,
            }
            if calls:
                meta["spec_verify_ct"] = calls
                meta["spec_num_correct_drafts"] = sent - 1 - calls
                meta["spec_num_proposed_drafts"] = calls * (self.depth - 1)
            shown = tokens[before:sent] if self.incremental else tokens[:sent]
            data = {"text": " ".join(map(str, shown)), "output_ids": shown, "meta_info": meta}
            await response.write(b"data: " + json.dumps(data).encode() + b"\n\n")
            # Lets other requests in, as a batch would.
            await asyncio.sleep(0)
        self.generated_tokens += sent
        self.verify_calls += calls
        await response.write(b"data: [DONE]\n\n")
        return response

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve on a free loopback port and yield the URL."""
        app = web.Application()
        app.router.add_get("/ready", self.ready)
        app.router.add_get("/server_info", self.server_info)
        app.router.add_post("/flush_cache", self.flush_cache)
        app.router.add_get("/metrics", self.read_metrics)
        app.router.add_post("/generate", self.generate)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()
