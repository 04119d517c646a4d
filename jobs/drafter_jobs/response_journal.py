"""Finished responses, appended to a file as they come, so that none is written twice."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType


class ResponseJournal:
    """Responses by sample id in a JSON Lines file.

    Parameters
    ----------
    path
        The file; created if missing. A last line that was cut off by a kill is removed.
    """

    def __init__(self, path: Path) -> None:
        self.responses: dict[str, list[int]] = {}
        whole = 0
        content = path.read_bytes() if path.exists() else b""
        for line in content.splitlines(keepends=True):
            try:
                entry = json.loads(line)
                response = [int(token) for token in entry["response"]]
                identifier = str(entry["id"])
            except (ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            self.responses[identifier] = response
            whole += len(line)
        self._file = path.open("r+b" if content else "wb")
        self._file.truncate(whole)
        self._file.seek(whole)

    def add(self, responses: Iterable[tuple[str, list[int]]]) -> None:
        """Append responses and flush them to the disk."""
        lines = []
        for identifier, response in responses:
            self.responses[identifier] = response
            lines.append(json.dumps({"id": identifier, "response": response}) + "\n")
        self._file.write("".join(lines).encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> ResponseJournal:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()
