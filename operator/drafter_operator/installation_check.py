"""``drafter-operator-check``: whether an installation works, for ``helm test``.

A DrafterRun is applied as a dry run, so that nothing is kept; one that breaks a rule must be
refused; and the operator must be ready.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import urllib.error
import urllib.request
from typing import Any

import kubernetes

from drafter_operator.api.base import GROUP, KIND, PLURAL, VERSION
from drafter_operator.cluster.api import APPLY, RUNS, ApiError, KubernetesApi
from drafter_operator.cluster.connection import connect

NAME = "installation-check"
SPEC = {
    "target": {"hubId": "example/target"},
    "data": {"prompts": {"configMap": {"name": "prompts", "key": "prompts.jsonl"}}},
    "storage": {"claimTemplate": {"size": "1Gi"}},
}
BROKEN = SPEC | {"serving": {"depths": [4, 4]}}
"""A draft depth given twice, which only a rule of the definition refuses."""

TIMEOUT_SECONDS = 10


class CheckFailedError(Exception):
    """The installation does not work; the message says what to do."""


async def check_definition(api: KubernetesApi, namespace: str) -> None:
    """Apply a run as a dry run, and one that must be refused.

    Raises
    ------
    CheckFailedError
        The API server has no definition of runs, an outdated one, or denies the right.
    """
    try:
        made = await _dry_run(api, namespace, SPEC)
    except ApiError as error:
        if error.status == 404:
            raise CheckFailedError(
                f"the CustomResourceDefinition {PLURAL}.{GROUP} is not installed: upgrade the"
                " release with crds.enabled=true, or apply crds/"
            ) from error
        raise CheckFailedError(f"a DrafterRun cannot be applied: {error}") from error
    if "depths" not in made["spec"].get("serving", {}):
        raise CheckFailedError(
            f"the CustomResourceDefinition {PLURAL}.{GROUP} sets no defaults: it is another"
            " version's; upgrade the release with crds.enabled=true"
        )
    try:
        await _dry_run(api, namespace, BROKEN)
    except ApiError as error:
        if error.status == 422:
            return
        raise CheckFailedError(f"a DrafterRun cannot be applied: {error}") from error
    raise CheckFailedError(
        f"the CustomResourceDefinition {PLURAL}.{GROUP} accepts a draft depth given twice: it is"
        " another version's; upgrade the release with crds.enabled=true"
    )


async def _dry_run(api: KubernetesApi, namespace: str, spec: dict[str, Any]) -> dict[str, Any]:
    body = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": spec,
    }
    answer = await api.request(
        "PATCH",
        f"{RUNS.format(namespace=namespace)}/{NAME}",
        query={"dryRun": "All", "fieldManager": NAME, "force": "true"},
        body=body,
        content_type=APPLY,
    )
    return dict(json.loads(answer))


def check_operator(url: str) -> None:
    """Ask the operator whether it is ready.

    Raises
    ------
    CheckFailedError
        It is not, or does not answer.
    """
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"{url}/readyz", timeout=TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError as error:
        raise CheckFailedError(f"the operator is not ready: {error.read().decode()}") from error
    except OSError as error:
        raise CheckFailedError(
            f"the operator does not answer at {url} ({error}): look at its Pod with kubectl"
            " describe and kubectl logs"
        ) from error


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser(prog="drafter-operator-check", description=__doc__)
    found.add_argument("--namespace", required=True, help="where a run is applied as a dry run")
    found.add_argument("--operator", required=True, help="http://host:port of its metrics")
    return found


def main() -> None:
    """Check; exit 1 with the reason if something does not work."""
    arguments = parser().parse_args()
    try:
        api = KubernetesApi(connect(NAME))
        asyncio.run(check_definition(api, arguments.namespace))
        print(f"the API server takes a DrafterRun in {arguments.namespace} and refuses a wrong one")
        check_operator(arguments.operator)
        print("the operator is ready")
    except (CheckFailedError, kubernetes.config.ConfigException) as error:
        sys.exit(f"drafter-operator-check: {error}")


if __name__ == "__main__":
    main()
