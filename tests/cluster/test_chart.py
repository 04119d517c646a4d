"""The chart as helm renders it: golden YAML, valid Kubernetes, hardened Pods, strict values."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from running_sandbox import tool

from drafter_jobs.contract.outcome import METRICS_PORT
from drafter_operator import installation_check, main
from drafter_operator.chart_reference import UnexplainedValueError, chart_values
from drafter_operator.resources.names import RUN_LABEL

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "drafter-operator"
GOLDEN = Path(__file__).parent / "golden_chart"
VALUE_SETS = [path.name.removesuffix(".values.yaml") for path in GOLDEN.glob("*.values.yaml")]
KUBERNETES = ("1.29", "1.37")
"""The oldest version that the chart names, and the newest there are schemas of."""

Body = dict[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool("helm"), *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def rendered(*options: str) -> list[Body]:
    done = helm("template", "rel", str(CHART), "--namespace", "drafters", *options)
    assert done.returncode == 0, done.stderr
    return [body for body in yaml.safe_load_all(done.stdout) if body]


def rendered_set(name: str) -> list[Body]:
    return rendered("--values", str(GOLDEN / f"{name}.values.yaml"))


def one(bodies: list[Body], kind: str) -> Body:
    (found,) = [body for body in bodies if body["kind"] == kind]
    return found


def pod_specs(bodies: list[Body]) -> dict[str, Body]:
    specs = {}
    for body in bodies:
        if body["kind"] == "Deployment":
            specs["operator"] = body["spec"]["template"]["spec"]
        elif body["kind"] == "Pod":
            specs["test"] = body["spec"]
    return specs


def test_helm_finds_no_fault() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", VALUE_SETS)
def test_a_set_of_values_renders_as_its_golden_yaml(
    name: str, request: pytest.FixtureRequest
) -> None:
    bodies = rendered_set(name)
    for body in bodies:
        for version in KUBERNETES:
            kubernetes_validate.validate(body, version, strict=True)
    # The definition is generated, and compared with its source elsewhere.
    bodies = [body for body in bodies if body["kind"] != "CustomResourceDefinition"]
    bodies.sort(key=lambda body: (body["kind"], body["metadata"]["name"], str(body["metadata"])))
    text = yaml.safe_dump_all(bodies, sort_keys=False, width=100)
    path = GOLDEN / f"{name}.yaml"
    if request.config.getoption("--update-golden"):
        path.write_text(text)
    assert path.exists(), f"write {path} with: pytest tests/cluster/test_chart.py --update-golden"
    assert text == path.read_text()


def test_the_definition_is_kept_and_can_be_left_out() -> None:
    definition = one(rendered(), "CustomResourceDefinition")
    committed = yaml.safe_load((REPOSITORY / "crds/drafters.dev_drafterruns.yaml").read_text())
    assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert definition["spec"] == committed["spec"]
    assert "CustomResourceDefinition" not in {body["kind"] for body in rendered_set("bare")}


def test_a_namespaced_installation_has_no_right_on_the_cluster() -> None:
    bodies = rendered_set("namespaced")
    assert not {body["kind"] for body in bodies} & {"ClusterRole", "ClusterRoleBinding"}
    homes = [body["metadata"]["namespace"] for body in bodies if body["kind"] == "Role"]
    assert sorted(homes) == ["drafters", "team-a", "team-a", "team-b"]
    arguments = pod_specs(bodies)["operator"]["containers"][0]["args"]
    assert [word for word in arguments if word.startswith("--namespace")] == [
        "--namespace=team-a",
        "--namespace=team-b",
    ]


@pytest.mark.parametrize("name", VALUE_SETS)
def test_the_operators_own_parser_takes_the_arguments_of_its_pod(name: str) -> None:
    bodies = rendered_set(name)
    (container,) = pod_specs(bodies)["operator"]["containers"]
    parsed: argparse.Namespace = main.parser().parse_args(container["args"])
    (port,) = container["ports"]
    assert parsed.metrics_port == port["containerPort"]
    assert container["command"] == ["drafter-operator"]
    values = yaml.safe_load((GOLDEN / f"{name}.values.yaml").read_text())
    assert parsed.namespace == values.get("watchNamespaces", [])
    assert parsed.job_ttl_seconds == values.get("operator", {}).get("jobTtlSeconds", 86400)
    assert parsed.image_pull_secret == values.get("operator", {}).get("imagePullSecrets", [])
    assert parsed.lease_namespace == "drafters"
    roles = [body for body in bodies if body["metadata"]["name"].endswith("-own")]
    if roles:
        rules = next(body for body in roles if body["kind"] == "Role")["rules"]
        assert rules[1]["resourceNames"] == [parsed.lease_name]


@pytest.mark.parametrize("pod", ["operator", "test"])
@pytest.mark.parametrize("name", VALUE_SETS)
def test_every_pod_keeps_to_the_restricted_standard(name: str, pod: str) -> None:
    spec = pod_specs(rendered_set(name))[pod]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"]["memory"]


def test_the_roles_allow_no_deletion_and_no_wildcard() -> None:
    for name in VALUE_SETS:
        bodies = rendered_set(name)
        bound = {body["roleRef"]["name"] for body in bodies if "roleRef" in body}
        for body in (found for found in bodies if found["metadata"]["name"] in bound):
            for rule in body.get("rules", []):
                words = {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
                assert not words & {"*", "delete", "deletecollection", "escalate", "bind"}
                assert not words & {"secrets", "pods/log", "pods/exec"}


def test_users_of_a_namespace_see_or_edit_its_runs_by_kubernetes_own_roles() -> None:
    roles = {body["metadata"]["name"]: body for body in rendered() if body["kind"] == "ClusterRole"}
    labels = {name: set(body["metadata"]["labels"]) for name, body in roles.items()}
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    viewing, editing = "rel-drafter-operator-runs-view", "rel-drafter-operator-runs-edit"
    assert {f"{prefix}{role}" for role in ("view", "edit", "admin")} <= labels[viewing]
    assert {f"{prefix}{role}" for role in ("edit", "admin")} <= labels[editing]
    assert f"{prefix}view" not in labels[editing]
    assert not set(roles[viewing]["rules"][0]["verbs"]) & set(roles[editing]["rules"][0]["verbs"])


def test_the_network_policy_opens_what_the_operator_speaks_to() -> None:
    bodies = rendered_set("everything")
    policy = one(bodies, "NetworkPolicy")["spec"]
    labels = one(bodies, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert policy["podSelector"]["matchLabels"].items() <= labels.items()
    dns, api_server, pods, proxy = policy["egress"]
    assert {(port["port"], port.get("protocol", "TCP")) for port in dns["ports"]} == {
        (53, "UDP"),
        (53, "TCP"),
    }
    assert api_server == {"ports": [{"port": 8443}]}
    assert pods["ports"] == [{"port": METRICS_PORT}]
    (expression,) = pods["to"][0]["podSelector"]["matchExpressions"]
    assert expression == {"key": RUN_LABEL, "operator": "Exists"}
    assert proxy["ports"] == [{"port": 3128}]
    # The Pod of `helm test` looks at the operator too.
    tester = one(bodies, "Pod")["metadata"]["labels"]
    assert policy["ingress"][0]["from"][-1]["podSelector"]["matchLabels"].items() <= tester.items()


def test_the_api_server_is_reached_without_the_proxy() -> None:
    (container,) = pod_specs(rendered_set("everything"))["operator"]["containers"]
    variables = {found["name"]: found.get("value") for found in container["env"]}
    assert variables["NO_PROXY"] == "localhost,.svc,$(KUBERNETES_SERVICE_HOST)"
    assert variables["HTTPS_PROXY"] == variables["HTTP_PROXY"] == "http://proxy.example.com:3128"


def test_the_test_of_the_installation_takes_its_arguments() -> None:
    (container,) = pod_specs(rendered_set("namespaced"))["test"]["containers"]
    assert container["command"] == ["drafter-operator-check"]
    parsed = installation_check.parser().parse_args(container["args"])
    assert parsed.namespace == "team-a"
    assert parsed.operator == "http://rel-drafter-operator-metrics.drafters:8080"


def schema() -> Body:
    found: Body = json.loads((CHART / "values.schema.json").read_text())
    return found


def nested(path: str, value: Any) -> Body:
    body: Any = value
    for key in reversed(path.split(".")):
        body = {key: body}
    return dict(body)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicas", 2),
        ("operator.threads", 2),
        ("crds.enabled", "yes"),
        ("image.repository", ""),
        ("image.repository", "has space"),
        ("image.tag", "a:b"),
        ("image.digest", "sha256:short"),
        ("image.pullPolicy", "Sometimes"),
        ("image.pullSecrets", [{"name": "a"}]),
        ("watchNamespaces", "default"),
        ("watchNamespaces", ["Team_A"]),
        ("watchNamespaces", ["a", "a"]),
        ("fullnameOverride", "Upper"),
        ("operator.gpuResourceName", "gpu"),
        ("operator.jobTtlSeconds", 5),
        ("operator.jobTtlSeconds", 100.5),
        ("operator.resyncSeconds", 0),
        ("operator.logLevel", "loud"),
        ("serviceAccount.annotations", {"a": 1}),
        ("resources.limits", {"memory": "1 GB"}),
        ("resources.claims", []),
        ("proxy.httpsProxy", "proxy:3128"),
        ("proxy.noProxy", "a, b"),
        ("extraEnv", {"A": "b"}),
        ("extraEnv", [{"name": "A", "value": 1}]),
        ("extraEnv", [{"value": "1"}]),
        ("nodeSelector", {"a": True}),
        ("tolerations", [{"effect": "Never"}]),
        ("affinity.podAntiaffinity", {}),
        ("networkPolicy.apiServerPorts", []),
        ("networkPolicy.apiServerPorts", [70000]),
        ("podDisruptionBudget.minAvailable", 2),
    ],
)
def test_a_wrong_value_is_refused(path: str, value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(nested(path, value), schema())


@pytest.mark.parametrize(
    ("setting", "word"),
    [
        ("operator.jobTtlSeconds=5", "/operator/jobTtlSeconds"),
        ("image.pullPolicy=Sometimes", "/image/pullPolicy"),
        ("replicas=2", "replicas"),
        ("serviceAccount.create=false", "serviceAccount.name"),
    ],
)
def test_helm_names_the_value_that_is_wrong(setting: str, word: str) -> None:
    done = helm("template", "rel", str(CHART), "--set", setting)
    assert done.returncode != 0
    assert word in done.stderr


def test_every_value_has_a_schema_that_takes_its_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    jsonschema.validate(values, schema())

    def keys(body: Body, prefix: str = "") -> set[str]:
        found = set()
        for name, value in body.items():
            found.add(prefix + name)
            if isinstance(value, dict):
                found |= keys(value, f"{prefix}{name}.")
        return found

    def described(node: Body, prefix: str = "") -> set[str]:
        found = set()
        for name, value in node.get("properties", {}).items():
            found.add(prefix + name)
            found |= described(value, f"{prefix}{name}.")
            assert value.get("additionalProperties", False) is not True, prefix + name
        return found

    free = {"resources.requests.cpu", "resources.requests.memory", "resources.limits.memory"}
    assert keys(values) - free - described(schema()) == set()


def test_a_value_without_a_comment_cannot_be_generated() -> None:
    explained = "# -- First.\na: 1\nb:\n  # -- Second,\n  # in two lines.\n  c: [x]\n"
    assert [(value.path, value.default, value.meaning) for value in chart_values(explained)] == [
        ("a", "1", "First."),
        ("b.c", '["x"]', "Second, in two lines."),
    ]
    with pytest.raises(UnexplainedValueError, match=r"b\.d"):
        chart_values(explained + "  d: 2\n")
