"""The operator's process: ``drafter-operator``."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from importlib.metadata import version

import kopf
import kubernetes
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from drafter_operator import metrics
from drafter_operator.cluster.api import KubernetesApi
from drafter_operator.handlers.operator import build_registry
from drafter_operator.handlers.reconciler import Reconciler, logger
from drafter_operator.logs import set_up_logs
from drafter_operator.resources.settings import OperatorSettings

STALE_RESYNCS = 4
"""Resyncs that may be missed before the operator counts as hung."""


def _environment(name: str, default: str) -> str:
    return os.environ.get(f"DRAFTER_OPERATOR_{name}", default)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; each option has an environment variable too."""
    found = argparse.ArgumentParser(prog="drafter-operator", description=__doc__)
    found.add_argument(
        "--namespace",
        action="append",
        default=[name for name in _environment("NAMESPACES", "").split(",") if name],
        help="namespace to look after; may be given several times; all if never",
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


def _client() -> kubernetes.client.ApiClient:
    configuration = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_incluster_config(configuration)
    except kubernetes.config.ConfigException:
        kubernetes.config.load_kube_config(client_configuration=configuration)
    return kubernetes.client.ApiClient(configuration)


async def _serve_metrics(reconciler: Reconciler, address: str, port: int, stale: float) -> None:
    """Serve metrics and probes until cancelled."""

    async def expose(_: web.Request) -> web.Response:
        body = generate_latest(metrics.REGISTRY)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthy(_: web.Request) -> web.Response:
        silence = time.monotonic() - reconciler.last_alive
        if silence > stale:
            return web.Response(status=503, text=f"nothing was looked at for {silence:.0f} s\n")
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        if not reconciler.has_listed:
            return web.Response(status=503, text="the runs have not been listed yet\n")
        return web.Response(text="ok\n")

    application = web.Application()
    application.add_routes(
        [web.get("/metrics", expose), web.get("/healthz", healthy), web.get("/readyz", ready)]
    )
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, address, port).start()
    try:
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


async def _run(arguments: argparse.Namespace, reconciler: Reconciler, api: KubernetesApi) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    web_server = asyncio.create_task(
        _serve_metrics(
            reconciler,
            arguments.metrics_address,
            arguments.metrics_port,
            STALE_RESYNCS * arguments.resync_seconds,
        )
    )
    operator = asyncio.create_task(
        kopf.operator(
            registry=build_registry(reconciler, api, arguments.namespace, arguments.resync_seconds),
            standalone=True,
            clusterwide=not arguments.namespace,
            namespaces=arguments.namespace,
            stop_flag=stopped,
        )
    )
    try:
        done, _ = await asyncio.wait({web_server, operator}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stopped.set()
        web_server.cancel()
        await asyncio.gather(web_server, operator, return_exceptions=True)


def main() -> None:
    """Run the operator until SIGTERM."""
    arguments = parser().parse_args()
    set_up_logs(arguments.log_format, arguments.log_level)
    metrics.BUILD.info({"version": version("drafter-operator")})
    try:
        client = _client()
    except kubernetes.config.ConfigException as error:
        sys.exit(f"drafter-operator: no cluster to talk to ({error}); set KUBECONFIG")
    api = KubernetesApi(client)
    settings = OperatorSettings(
        gpu_resource_name=arguments.gpu_resource_name,
        job_ttl_seconds=arguments.job_ttl_seconds,
        image_pull_secrets=tuple(arguments.image_pull_secret),
    )
    reconciler = Reconciler(
        api,
        settings,
        active_seconds=arguments.active_seconds,
        resync_seconds=arguments.resync_seconds,
    )
    where = ", ".join(arguments.namespace) or "all namespaces"
    logger.info("looking after DrafterRuns in %s", where)
    try:
        asyncio.run(_run(arguments, reconciler, api))
    except OSError as error:
        sys.exit(
            f"drafter-operator: {arguments.metrics_address}:{arguments.metrics_port} cannot be"
            f" bound ({error.strerror}); choose another --metrics-port"
        )


if __name__ == "__main__":
    main()
