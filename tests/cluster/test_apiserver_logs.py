from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from running_sandbox import tool

from drafter_sandbox.errors import bad_request
from drafter_sandbox.service import Sandbox, Settings


class Lines:
    """Gives the lines of a container that never ends, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.more = asyncio.Event()

    async def read(
        self, namespace: str, pod: str, container: str, **options: Any
    ) -> AsyncIterator[bytes]:
        self.asked = {"pod": f"{namespace}/{pod}/{container}", **options}
        if options["previous"]:
            raise bad_request(f'previous terminated container "{container}" not found')
        yield b"first\n"
        if options["follow"]:
            await self.more.wait()
            yield b"second\n"


async def test_logs_come_from_the_node_and_follow_it(tmp_path: Path) -> None:
    sandbox = Sandbox(Settings(tmp_path))
    await sandbox.start()
    lines = Lines()
    assert sandbox.store is not None
    sandbox.serve_logs(lines)
    spec = {
        "containers": [{"name": "main", "image": "i"}],
        "initContainers": [{"name": "first", "image": "i"}],
    }
    sandbox.store.create("pods", "default", {"metadata": {"name": "pod"}, "spec": spec})

    async def kubectl(*arguments: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            tool("kubectl"),
            f"--kubeconfig={sandbox.kubeconfig}",
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    try:
        done = await kubectl("logs", "pod", "--tail=5", "--since=10s")
        out, error = await done.communicate()
        assert out == b"first\n", error
        assert lines.asked == {
            "pod": "default/pod/main",
            "follow": False,
            "tail_lines": 5,
            "previous": False,
            "since_seconds": 10,
        }
        following = await kubectl("logs", "-f", "pod", "-c", "first")
        assert following.stdout is not None
        assert await following.stdout.readline() == b"first\n"
        lines.more.set()
        assert await following.stdout.readline() == b"second\n"
        assert await following.wait() == 0
        refused = await kubectl("logs", "pod", "--previous")
        _, error = await refused.communicate()
        assert b'previous terminated container "main" not found' in error
        wrong = await kubectl("logs", "pod", "-c", "other")
        _, error = await wrong.communicate()
        assert b"other" in error
    finally:
        await sandbox.stop()
