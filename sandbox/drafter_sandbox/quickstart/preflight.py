"""What the quick start needs, checked before anything is started."""

from __future__ import annotations

import importlib.util
import shutil
import socket
from pathlib import Path

import psutil

from drafter_sandbox.quickstart.tools import search_path

GIB = 1 << 30
MEMORY_BYTES = 6 * GIB
DISK_BYTES = 4 * GIB
PACKAGES = ("torch", "transformers", "speculators", "sglang", "kopf", "kubernetes")
TOOLS = ("kubectl", "helm")


def missing_parts(directory: Path) -> list[str]:
    """Return a sentence for each thing the quick start lacks, with the way out.

    Parameters
    ----------
    directory
        Existing directory that will hold the quick start's files.
    """
    found = []
    packages = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if packages:
        found.append(f"Python packages are missing: {', '.join(packages)}. Run: make install")
    tools = [name for name in TOOLS if shutil.which(name, path=search_path()) is None]
    if tools:
        found.append(f"{' and '.join(tools)} not found on the PATH. Run: make install")
    memory = psutil.virtual_memory().available
    if memory < MEMORY_BYTES:
        found.append(
            f"{memory / GIB:.1f} GiB of memory are available, {MEMORY_BYTES / GIB:.0f} GiB are"
            " needed. Close other programs."
        )
    disk = shutil.disk_usage(directory).free
    if disk < DISK_BYTES:
        found.append(
            f"{disk / GIB:.1f} GiB are free in {directory}, {DISK_BYTES / GIB:.0f} GiB are needed."
        )
    try:
        with socket.socket() as probe:
            probe.bind(("127.77.77.77", 0))
    except OSError as error:
        found.append(f"addresses in 127.0.0.0/8 cannot be bound ({error}): Pods need one each.")
    return found
