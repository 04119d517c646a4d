"""Command ``drafter-sandbox``: a Kubernetes-shaped cluster made of local processes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from drafter_sandbox.quantities import parse_quantity
from drafter_sandbox.service import Sandbox, SandboxError, Settings

EXIT_CANNOT_START = 1

_NOTICE = """\
This is not Kubernetes: it serves the part of its API that this project uses.
Pods are plain processes of this machine, with your rights and not isolated.
It listens on the loopback interface only."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="drafter-sandbox", description=_NOTICE)
    commands = top.add_subparsers(dest="command", required=True)
    start = commands.add_parser("start", help="run a sandbox until it is interrupted")
    start.add_argument(
        "--state",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder that keeps the objects, volumes and logs",
    )
    start.add_argument(
        "--port",
        type=_port,
        default=0,
        help="port of the API server; 0 takes that of the last start, or any free one (default: 0)",
    )
    start.add_argument(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="kubeconfig to write (default: DIR/kubeconfig)",
    )
    start.add_argument(
        "--images",
        type=Path,
        metavar="FILE",
        help="table of images and their local commands; without one no Pod runs",
    )
    start.add_argument("--cpus", type=float, help="cores the node offers (default: all)")
    start.add_argument(
        "--memory",
        type=_quantity,
        metavar="QUANTITY",
        help="memory the node offers, such as 8Gi (default: all)",
    )
    start.add_argument("--verbose", action="store_true", help="log what the node does")
    return top


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 65536:
        raise argparse.ArgumentTypeError(f"{port} is no port: choose one from 0 to 65535")
    return port


def _quantity(text: str) -> str:
    try:
        parse_quantity(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    if options.images is not None and not options.images.is_file():
        print(
            f"drafter-sandbox: there is no table of images at {options.images}: name one with"
            " --images",
            file=sys.stderr,
        )
        return EXIT_CANNOT_START
    settings = Settings(
        state=options.state.absolute(),
        port=options.port,
        kubeconfig=options.kubeconfig.absolute() if options.kubeconfig else None,
        images=options.images,
        cpus=options.cpus,
        memory=options.memory,
    )
    try:
        asyncio.run(_serve(settings))
    except SandboxError as error:
        print(f"drafter-sandbox: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    return 0


async def _serve(settings: Settings) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    sandbox = Sandbox(settings)
    await sandbox.start()
    try:
        print(_NOTICE)
        print(f"API server: {sandbox.url}")
        print(f"Use it with: kubectl --kubeconfig {sandbox.kubeconfig} get all", flush=True)
        await stopped.wait()
    finally:
        await sandbox.stop()


if __name__ == "__main__":
    sys.exit(main())
