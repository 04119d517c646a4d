"""What a container's words mean on this machine: mount paths and the wildcard address.

Pods here are plain processes without a mount namespace or a network of their own. So every path
of a mount becomes the directory behind it, and ``0.0.0.0`` the Pod's own address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_BEFORE = r"(?<![\w./-])"
_AFTER = r"(?=/|$|[\s:;,\"'\])}])"
ANY_ADDRESS = "0.0.0.0"


class Substitutions:
    """Replaces paths and addresses in a container's words.

    Parameters
    ----------
    paths
        Directory or file of this machine by its path inside the container.
    address
        The Pod's address.
    """

    def __init__(self, paths: Mapping[str, str], address: str) -> None:
        self._paths = {path.rstrip("/") or "/": host for path, host in paths.items()}
        self._address = address
        longest_first = sorted(self._paths, key=len, reverse=True)
        self._pattern = (
            re.compile(f"{_BEFORE}({'|'.join(map(re.escape, longest_first))}){_AFTER}")
            if longest_first
            else None
        )

    def apply(self, text: str) -> str:
        """Return a word with every mount path and a wildcard address replaced."""
        if self._pattern is not None:
            text = self._pattern.sub(lambda found: self._paths[found.group(1)], text)
        name, equals, value = text.partition("=")
        if text == ANY_ADDRESS:
            return self._address
        if equals and value == ANY_ADDRESS:
            return f"{name}={self._address}"
        return text
