"""The operator's process: ``drafter-operator``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from importlib.metadata import version

import kopf
import kubernetes
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, disable_created_metrics, generate_latest

from drafter_operator import metrics
from drafter_operator.cluster.api import KubernetesApi
from drafter_operator.cluster.connection import connect
from drafter_operator.cluster.lease import LeaseLostError, LeaseTimes, OperatorLease
from drafter_operator.handlers.operator import build_registry
from drafter_operator.handlers.reconciler import Reconciler, logger
from drafter_operator.logs import set_up_logs
from drafter_operator.resources.settings import OperatorSettings

STOP_SECONDS = 7.0
"""Time from SIGTERM to the end at the latest."""

STALE_RESYNCS = 4
"""Resyncs that may be missed before the operator counts as hung."""


def _environment(name: str, default: str) -> str:
    return os.environ.get(f"DRAFTER_OPERATOR_{name}", default)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; most options have an environment variable too."""
    found = argparse.ArgumentParser(prog="drafter-operator", description=__doc__)
    found.add_argument(
        "--namespace",
        action="append",
        default=[name for name in _environment("NAMESPACES", "").split(",") if name],
        help="namespace to look after; may be given several times; all if never",
    )
    found.add_argument(
        "--lease-namespace",
        default=_environment("LEASE_NAMESPACE", ""),
        help="namespace of the Lease that one operator holds at a time; no election if empty",
    )
    found.add_argument("--lease-name", default=_environment("LEASE_NAME", "drafter-operator"))
    found.add_argument(
        "--lease-duration-seconds",
        type=float,
        default=_environment("LEASE_DURATION_SECONDS", "15"),
        help="time after which another operator takes over from a silent one",
    )
    found.add_argument("--metrics-address", default=_environment("METRICS_ADDRESS", "0.0.0.0"))
    found.add_argument("--metrics-port", type=int, default=_environment("METRICS_PORT", "8080"))
    found.add_argument(
        "--gpu-resource-name", default=_environment("GPU_RESOURCE_NAME", "nvidia.com/gpu")
    )
    found.add_argument(
        "--job-ttl-seconds", type=int, default=_environment("JOB_TTL_SECONDS", "86400")
    )
    found.add_argument(
        "--image-pull-secret",
        action="append",
        default=[name for name in _environment("IMAGE_PULL_SECRETS", "").split(",") if name],
    )
    found.add_argument(
        "--pod-env",
        action="append",
        type=_variable,
        default=[],
        metavar="NAME=VALUE",
        help="variable of every Pod of a run, such as a proxy; may be given several times",
    )
    found.add_argument("--resync-seconds", type=float, default=_environment("RESYNC_SECONDS", "30"))
    found.add_argument(
        "--active-seconds",
        type=float,
        default=_environment("ACTIVE_SECONDS", "5"),
        help="time between two looks at a run that is at work",
    )
    found.add_argument(
        "--log-format", choices=("auto", "json", "text"), default=_environment("LOG_FORMAT", "auto")
    )
    found.add_argument("--log-level", default=_environment("LOG_LEVEL", "info"))
    return found


async def _serve_metrics(
    reconciler: Reconciler, lease: OperatorLease | None, address: str, port: int, stale: float
) -> None:
    """Serve metrics and probes until cancelled.

    An operator that stands by is ready, and alive as long as it looks at the Lease.
    """

    def stands_by() -> bool:
        return lease is not None and not lease.is_held()

    def last_alive() -> float:
        return lease.last_tried if lease and stands_by() else reconciler.last_alive

    async def expose(_: web.Request) -> web.Response:
        body = generate_latest(metrics.REGISTRY)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthy(_: web.Request) -> web.Response:
        silence = time.monotonic() - last_alive()
        if silence > stale:
            return web.Response(status=503, text=f"nothing was looked at for {silence:.0f} s\n")
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        if not stands_by() and not reconciler.has_listed:
            return web.Response(status=503, text="the runs have not been listed yet\n")
        return web.Response(text="ok\n")

    application = web.Application()
    application.add_routes(
        [web.get("/metrics", expose), web.get("/healthz", healthy), web.get("/readyz", ready)]
    )
    # kopf waits at its end for every task in the process, five seconds for those of connections
    # that are kept alive.
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, address, port).start()
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _lease(
    arguments: argparse.Namespace, api: KubernetesApi, identity: str
) -> OperatorLease | None:
    if not arguments.lease_namespace:
        return None
    duration = arguments.lease_duration_seconds
    lease = OperatorLease(
        api,
        arguments.lease_namespace,
        arguments.lease_name,
        identity,
        LeaseTimes(duration=duration, deadline=duration * 2 / 3, retry=duration * 2 / 15),
    )
    api.may_write = lease.is_held
    return lease


async def _run(
    arguments: argparse.Namespace,
    reconciler: Reconciler,
    api: KubernetesApi,
    lease: OperatorLease | None,
) -> None:
    stopped = asyncio.Event()
    _stop_on_signals(stopped)
    web_server = asyncio.create_task(
        _serve_metrics(
            reconciler,
            lease,
            arguments.metrics_address,
            arguments.metrics_port,
            STALE_RESYNCS * arguments.resync_seconds,
        )
    )
    operator = asyncio.create_task(_operate(arguments, reconciler, api, lease, stopped))
    try:
        await _until_one_ends(web_server, operator)
    finally:
        stopped.set()
        web_server.cancel()
        await asyncio.gather(web_server, operator, return_exceptions=True)


def _stop_on_signals(stopped: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop, stopped)


def _stop(stopped: asyncio.Event) -> None:
    """Begin to stop; end in time even if a request hangs, since the kubelet would only kill later.

    What a pass has not written the next operator decides anew.
    """
    stopped.set()
    last_resort = threading.Timer(STOP_SECONDS, os._exit, [1])
    last_resort.daemon = True
    last_resort.start()


async def _operate(
    arguments: argparse.Namespace,
    reconciler: Reconciler,
    api: KubernetesApi,
    lease: OperatorLease | None,
    stopped: asyncio.Event,
) -> None:
    """Look after the runs, while the Lease is held if there is an election."""
    if lease is not None:
        acquired = asyncio.create_task(lease.acquire())
        stop = asyncio.create_task(stopped.wait())
        await asyncio.wait({acquired, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if stopped.is_set():
            acquired.cancel()
            await asyncio.gather(acquired, return_exceptions=True)
            await lease.give_back()
            return
        await acquired
    reconciler.last_alive = time.monotonic()
    registry = build_registry(reconciler, api, arguments.namespace, arguments.resync_seconds)
    operator = asyncio.create_task(_run_kopf(registry, arguments.namespace, stopped))
    if lease is None:
        await operator
        return
    keeper = asyncio.create_task(lease.keep())
    try:
        await _until_one_ends(operator, keeper)
    finally:
        stopped.set()
        keeper.cancel()
        # The last pass has ended before another operator may begin one.
        await asyncio.gather(operator, keeper, return_exceptions=True)
        await lease.give_back()


async def _run_kopf(
    registry: kopf.OperatorRegistry, namespaces: Sequence[str], stopped: asyncio.Event
) -> None:
    before = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        standalone=True,
        clusterwide=not namespaces,
        namespaces=namespaces,
        stop_flag=stopped,
    )
    # kopf has put handlers of its own in their place, which know no last resort.
    _stop_on_signals(stopped)
    await kopf.run_tasks(tasks, ignored=before)


async def _until_one_ends(*tasks: asyncio.Task[None]) -> None:
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def main() -> None:
    """Run the operator until SIGTERM."""
    arguments = parser().parse_args()
    set_up_logs(arguments.log_format, arguments.log_level)
    # A creation time beside each counter is a series nobody asks for.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    metrics.BUILD.labels(version("drafter-operator")).set(1)
    identity = f"{socket.gethostname()}_{uuid.uuid4()}"
    try:
        client = connect(identity)
    except kubernetes.config.ConfigException as error:
        sys.exit(f"drafter-operator: no cluster to talk to ({error}); set KUBECONFIG")
    api = KubernetesApi(client)
    settings = OperatorSettings(
        gpu_resource_name=arguments.gpu_resource_name,
        job_ttl_seconds=arguments.job_ttl_seconds,
        image_pull_secrets=tuple(arguments.image_pull_secret),
        environment=tuple(arguments.pod_env),
    )
    reconciler = Reconciler(
        api,
        settings,
        active_seconds=arguments.active_seconds,
        resync_seconds=arguments.resync_seconds,
    )
    lease = _lease(arguments, api, identity)
    where = ", ".join(arguments.namespace) or "all namespaces"
    logger.info("looking after DrafterRuns in %s", where)
    try:
        asyncio.run(_run(arguments, reconciler, api, lease))
    except LeaseLostError as error:
        sys.exit(f"drafter-operator: stopped, since another operator may be active: {error}")
    except OSError as error:
        sys.exit(
            f"drafter-operator: {arguments.metrics_address}:{arguments.metrics_port} cannot be"
            f" bound ({error.strerror}); choose another --metrics-port"
        )


if __name__ == "__main__":
    main()
