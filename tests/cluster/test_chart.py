"""The chart: it renders valid Kubernetes, and its role covers what the operator asks for."""

from __future__ import annotations

import argparse
import re
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from running_sandbox import tool

from drafter_operator import main
from drafter_operator.cluster.api import COLLECTIONS

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "drafter-operator"
KUBERNETES = "1.34"


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool("helm"), *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def rendered(*settings: str) -> list[dict[str, Any]]:
    options = [part for setting in settings for part in ("--set", setting)]
    done = helm("template", "rel", str(CHART), "--namespace", "drafters", *options)
    assert done.returncode == 0, done.stderr
    return [body for body in yaml.safe_load_all(done.stdout) if body]


def one(bodies: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [body for body in bodies if body["kind"] == kind]
    return found


def test_helm_finds_no_fault() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("watchNamespaces={one,two}",),
        (
            "image.pullSecrets={a}",
            "operator.imagePullSecrets={b}",
            "priorityClassName=high",
            "nodeSelector.disk=ssd",
            "extraEnv[0].name=HTTPS_PROXY",
            "extraEnv[0].value=http://proxy:3128",
            "tolerations[0].operator=Exists",
        ),
    ],
)
def test_what_is_rendered_is_valid_kubernetes(settings: tuple[str, ...]) -> None:
    bodies = rendered(*settings)
    for body in bodies:
        if body["kind"] != "CustomResourceDefinition":
            kubernetes_validate.validate(body, KUBERNETES, strict=True)
    names = [(body["kind"], body["metadata"]["name"]) for body in bodies]
    assert ("Deployment", "rel-drafter-operator") in names


def test_the_definition_is_kept_and_can_be_left_out() -> None:
    definition = one(rendered(), "CustomResourceDefinition")
    committed = yaml.safe_load((REPOSITORY / "crds/drafters.dev_drafterruns.yaml").read_text())
    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert definition["spec"] == committed["spec"]
    kinds = {body["kind"] for body in rendered("crds.enabled=false")}
    assert "CustomResourceDefinition" not in kinds


def test_a_namespaced_installation_has_no_right_on_the_cluster() -> None:
    bodies = rendered("watchNamespaces={one,two}")
    kinds = [body["kind"] for body in bodies]
    assert "ClusterRole" not in kinds
    assert "ClusterRoleBinding" not in kinds
    roles = {body["metadata"]["namespace"] for body in bodies if body["kind"] == "Role"}
    assert roles == {"one", "two"}
    arguments = one(bodies, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "--namespace=one" in arguments


def test_the_operators_own_parser_takes_the_arguments_of_its_pod() -> None:
    bodies = rendered("watchNamespaces={one,two}", "operator.imagePullSecrets={b}")
    container = one(bodies, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    parsed: argparse.Namespace = main.parser().parse_args(container["args"])
    assert parsed.namespace == ["one", "two"]
    assert parsed.image_pull_secret == ["b"]
    assert parsed.job_ttl_seconds == 86400
    (port,) = container["ports"]
    assert parsed.metrics_port == port["containerPort"]
    assert container["command"] == ["drafter-operator"]


def test_the_operators_pod_is_hardened() -> None:
    spec = one(rendered(), "Deployment")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


# What the operator does to each kind: `cluster/observe.py` reads, `cluster/effect.py` writes, and
# `handlers/operator.py` watches.
USED = {
    "DrafterRun": {"get", "list", "watch"},
    "Job": {"list", "watch", "create", "patch"},
    "Deployment": {"list", "watch", "create", "patch"},
    "Service": {"get", "create", "patch"},
    "PersistentVolumeClaim": {"get", "create", "patch"},
    "ConfigMap": {"get"},
    "Pod": {"list", "watch"},
    "Event": {"create"},
}


def granted(role: dict[str, Any]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_the_role_has_the_rights_the_operator_uses(kind: str) -> None:
    match = re.fullmatch(
        r"/(?:api|apis/(?P<group>[^/]+))/[^/]+/namespaces/\{namespace\}/(?P<resource>\w+)",
        COLLECTIONS[kind],
    )
    assert match is not None
    key = (match["group"] or "", match["resource"])
    assert USED[kind] <= granted(one(rendered(), "ClusterRole"))[key]


def test_the_role_has_the_rights_on_subresources() -> None:
    rights = granted(one(rendered(), "ClusterRole"))
    assert rights["drafters.dev", "drafterruns/status"] == {"patch"}
    assert rights["", "pods/log"] == {"get"}


def test_the_role_allows_no_deletion_and_no_wildcard() -> None:
    for (group, resource), verbs in granted(one(rendered(), "ClusterRole")).items():
        assert "*" not in {group, resource, *verbs}
        assert not verbs & {"delete", "deletecollection", "update", "escalate", "bind"}
        assert resource != "secrets"


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("operator.jobTtlSeconds=5", "jobTtlSeconds"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("replicas=2", "replicas"),
    ],
)
def test_a_wrong_value_is_refused_by_name(setting: str, word: str) -> None:
    done = helm("template", "rel", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert word in done.stderr


def test_every_value_is_explained() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        name = re.match(r"\s*(\w+):( .+)", line)
        if name and not line.lstrip().startswith("#"):
            nested_resources = re.match(r"\s+(cpu|memory):", line)
            assert nested_resources or above.lstrip().startswith("# -- "), line
