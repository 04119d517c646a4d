"""A sandbox with the chart installed by real helm: the operator is a Pod with its own rights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from operator_cluster import OperatorCluster, stand_in_images

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "drafter-operator"
RELEASE = "drafter-operator"
NAMESPACE = "drafter-system"
USER = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
QUICK: dict[str, Any] = {
    "operator.activeSeconds": 0.5,
    "operator.resyncSeconds": 2,
    "operator.leaseDurationSeconds": 6,
    "operator.logFormat": "text",
}
"""Values that make the operator look often."""

Right = tuple[str, str, str]
"""API group, resource with its subresource, verb."""


class ChartCluster(OperatorCluster):
    """A sandbox with stand-ins for the jobs and for SGLang, and the image of the operator."""

    def __init__(self, directory: Path) -> None:
        table = stand_in_images(directory / "control")
        table["images"].append({"name": "*/drafter-operator", "path": ["{bin}"]})
        images = directory / "images.yaml"
        images.write_text(yaml.safe_dump(table))
        super().__init__(directory, images)

    def helm(self, *arguments: str) -> str:
        """Return what helm prints; it must succeed."""
        return self.sandbox.run("helm", *arguments, "--namespace", NAMESPACE).stdout

    def install(self, *command: str, **values: Any) -> str:
        """Install or upgrade the chart and wait for the operator to be ready."""
        options = [
            part
            for name, value in values.items()
            for part in ("--set-json", f"{name}={json.dumps(value)}")
        ]
        arguments = ("--create-namespace", "--wait", "--timeout", "50s", *options)
        return self.helm(*(command or ("upgrade", "--install")), RELEASE, str(CHART), *arguments)

    def uninstall(self) -> None:
        """Uninstall the release and wait until its operator has ended."""
        self.helm("uninstall", RELEASE, "--wait")
        label = f"app.kubernetes.io/instance={RELEASE}"
        self.sandbox.kubectl(
            "wait", "--for=delete", "pod", "-n", NAMESPACE, "-l", label, "--timeout=30s"
        )

    def operator_log(self) -> str:
        return self.sandbox.kubectl(
            "logs", f"deployment/{RELEASE}", "-n", NAMESPACE, "--tail", "400"
        )

    def requests(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """Yield the audit log's events of the operator, from a line on."""
        for line in self.audit_lines()[after:]:
            event = json.loads(line)
            if event["user"]["username"] == USER:
                yield event

    def audit_lines(self) -> list[str]:
        return (self.sandbox.state / "audit.log").read_text().splitlines()

    def granted(self) -> set[Right]:
        """Return what the roles that are bound to the operator give it."""
        found = set()
        for kind in ("rolebindings", "clusterrolebindings"):
            for binding in self.sandbox.get(kind, "-A")["items"]:
                subjects = binding.get("subjects") or []
                if any((s.get("namespace"), s["name"]) == (NAMESPACE, RELEASE) for s in subjects):
                    role = binding["roleRef"]
                    home = binding["metadata"].get("namespace", "default")
                    for rule in self.sandbox.get(role["kind"], role["name"], "-n", home)["rules"]:
                        found |= {
                            (group, resource, verb)
                            for group in rule["apiGroups"]
                            for resource in rule["resources"]
                            for verb in rule["verbs"]
                        }
        return found


def used(event: dict[str, Any]) -> set[Right]:
    """Return the rights that a request of the audit log needed."""
    reference = event.get("objectRef")
    if reference is None:
        return set()
    resource = reference["resource"]
    if "subresource" in reference:
        resource += f"/{reference['subresource']}"
    group = reference.get("apiGroup", "")
    verbs = {event["verb"]}
    # What is applied and was not there is created, for which another right is needed.
    if event["verb"] == "patch" and event["responseStatus"]["code"] == 201:
        verbs.add("create")
    return {(group, resource, verb) for verb in verbs}
