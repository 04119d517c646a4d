"""Who may do what at the sandbox's API server, asked with real kubectl and the official client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes
import pytest
from kubernetes.client.exceptions import ApiException
from running_sandbox import RunningSandbox

from drafter_sandbox.authorization import Attributes, allows, attributes_of

Body = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
JOBS = "/apis/batch/v1/namespaces/one/jobs"


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/pods", "list pods"),
        ("GET", "/api/v1/namespaces/one/pods?watch=true", "watch pods one"),
        ("GET", "/api/v1/namespaces/one/pods/a/log", "get pods/log one a"),
        ("GET", "/api/v1/namespaces/one", "get namespaces one one"),
        ("PUT", "/api/v1/namespaces/one/status", "update namespaces/status one one"),
        ("GET", f"{JOBS}?fieldSelector=metadata.name=a", "list jobs one a"),
        ("POST", JOBS, "create jobs one"),
        ("PATCH", f"{JOBS}/a", "patch jobs one a"),
        ("DELETE", f"{JOBS}/a", "delete jobs one a"),
        ("DELETE", JOBS, "deletecollection jobs one"),
        ("GET", "/apis/batch/v1", "get /apis/batch/v1"),
        ("GET", "/version", "get /version"),
    ],
)
def test_a_request_is_read_as_a_verb_on_a_resource(method: str, path: str, expected: str) -> None:
    where, _, text = path.partition("?")
    query = dict(part.split("=", 1) for part in text.split("&") if part)
    found = attributes_of(method, where, query)
    words = [found.verb, found.rule_resource or found.path, found.namespace, found.name]
    assert " ".join(word for word in words if word) == expected


@pytest.mark.parametrize(
    ("rule", "covered"),
    [
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"]}, True),
        ({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, True),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["*/log"]}, True),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}, False),
        ({"verbs": ["list"], "apiGroups": [""], "resources": ["pods/log"]}, False),
        ({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["pods/log"]}, False),
        (
            {
                "verbs": ["get"],
                "apiGroups": [""],
                "resources": ["pods/log"],
                "resourceNames": ["other"],
            },
            False,
        ),
        ({"verbs": ["get"], "nonResourceURLs": ["*"]}, False),
    ],
)
def test_a_rule_covers_exactly_what_it_names(rule: Body, covered: bool) -> None:
    asked = Attributes("get", resource="pods", subresource="log", namespace="one", name="a")
    assert allows(rule, asked) is covered


def grant(
    api: RunningSandbox, namespace: str, rules: list[Body], *, cluster: bool = False
) -> kubernetes.client.ApiClient:
    """Give the namespace's default ServiceAccount rights; return a client with its token."""
    rbac = kubernetes.client.RbacAuthorizationV1Api(api.client())
    name = f"{namespace}-granted"
    kind = "ClusterRole" if cluster else "Role"
    role = {"metadata": {"name": name}, "rules": rules}
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
    }
    if cluster:
        rbac.create_cluster_role(role)
        rbac.create_cluster_role_binding(binding)
    else:
        rbac.create_namespaced_role(namespace, role)
        rbac.create_namespaced_role_binding(namespace, binding)
    return client_of(api, namespace)


def client_of(api: RunningSandbox, namespace: str) -> kubernetes.client.ApiClient:
    administrator = api.client()
    core = kubernetes.client.CoreV1Api(administrator)
    request: Body = {"spec": {"audiences": []}}
    token = core.create_namespaced_service_account_token("default", namespace, request).status.token
    configuration = kubernetes.client.Configuration()
    configuration.host = administrator.configuration.host
    configuration.ssl_ca_cert = administrator.configuration.ssl_ca_cert
    configuration.api_key = {"authorization": f"Bearer {token}"}
    return kubernetes.client.ApiClient(configuration)


def refusal(call: Any, *arguments: Any) -> Body:
    with pytest.raises(ApiException) as caught:
        call(*arguments)
    found: Body = json.loads(caught.value.body)
    assert found["code"] == 403, found
    return found


def test_an_account_without_a_role_is_told_what_it_may_not(
    api: RunningSandbox, namespace: str
) -> None:
    client = client_of(api, namespace)
    who = f'User "system:serviceaccount:{namespace}:default" cannot'
    found = refusal(kubernetes.client.BatchV1Api(client).read_namespaced_job, "a", namespace)
    assert found["message"] == (
        f'jobs.batch "a" is forbidden: {who} get resource "jobs" in API group "batch"'
        f' in the namespace "{namespace}"'
    )
    assert found["reason"] == "Forbidden"
    assert found["details"] == {"name": "a", "group": "batch", "kind": "jobs"}
    found = refusal(kubernetes.client.CoreV1Api(client).list_node)
    assert found["message"] == (
        f'nodes is forbidden: {who} list resource "nodes" in API group "" at the cluster scope'
    )
    # What is served may be asked by everyone, or no client could begin.
    assert kubernetes.client.VersionApi(client).get_code().major
    assert kubernetes.client.ApisApi(client).get_api_versions().groups


def test_a_role_gives_its_verbs_in_its_namespace_only(api: RunningSandbox, namespace: str) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "create"]}
    core = kubernetes.client.CoreV1Api(grant(api, namespace, [rule]))
    body = {"metadata": {"name": "made"}}
    core.create_namespaced_config_map(namespace, body)
    assert len(core.list_namespaced_config_map(namespace).items) == 1
    assert (
        "cannot delete" in refusal(core.delete_namespaced_config_map, "made", namespace)["message"]
    )
    refusal(core.list_namespaced_config_map, "default")
    refusal(core.list_config_map_for_all_namespaces)


def test_a_cluster_role_gives_its_verbs_everywhere(api: RunningSandbox, namespace: str) -> None:
    rule = {"apiGroups": [""], "resources": ["nodes", "configmaps"], "verbs": ["list"]}
    core = kubernetes.client.CoreV1Api(grant(api, namespace, [rule], cluster=True))
    core.list_node()
    core.list_config_map_for_all_namespaces()
    core.list_namespaced_config_map("default")


def test_to_apply_what_is_not_there_needs_the_right_to_create(
    api: RunningSandbox, namespace: str
) -> None:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"]}
    grant(api, namespace, [rule])
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "new"}}
    account = f"--as=system:serviceaccount:{namespace}:default"
    apply = ("apply", "--server-side", "-n", namespace, account, "-f", "-")
    assert 'cannot create resource "configmaps"' in api.refused(*apply, stdin=json.dumps(body))

    api.kubectl("create", "configmap", "new", "-n", namespace)
    api.kubectl(*apply, stdin=json.dumps(body))


def test_a_binding_to_a_role_that_is_not_there_says_so(api: RunningSandbox, namespace: str) -> None:
    client = grant(api, namespace, [])
    rbac = kubernetes.client.RbacAuthorizationV1Api(api.client())
    rbac.delete_namespaced_role(f"{namespace}-granted", namespace)
    found = refusal(kubernetes.client.CoreV1Api(client).list_namespaced_pod, namespace)
    assert (
        f'RBAC: role.rbac.authorization.k8s.io "{namespace}-granted" not found'
        in (found["message"])
    )


def test_kubectl_says_what_an_account_can_do(api: RunningSandbox, namespace: str) -> None:
    rule = {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["patch"]}
    grant(api, namespace, [rule])
    account = f"--as=system:serviceaccount:{namespace}:default"
    can = ("auth", "can-i", "-n", namespace, account)
    assert api.kubectl(*can, "patch", "jobs").strip() == "yes"
    assert api.run("kubectl", *can, "delete", "jobs", check=False).stdout.strip() == "no"
    assert "jobs.batch" in api.kubectl(*can, "--list")
    assert api.kubectl("auth", "can-i", "delete", "nodes").strip().endswith("yes")
    assert "cannot list" in api.refused("get", "pods", "-n", namespace, account)


def test_an_account_may_not_speak_for_another(api: RunningSandbox, namespace: str) -> None:
    client = client_of(api, namespace)
    client.default_headers["Impersonate-User"] = "system:admin"
    found = refusal(kubernetes.client.CoreV1Api(client).list_node)
    assert "cannot impersonate" in found["message"]


def test_a_token_ends_with_its_account(api: RunningSandbox, namespace: str) -> None:
    client = client_of(api, namespace)
    core = kubernetes.client.CoreV1Api(api.client())
    core.delete_namespaced_service_account("default", namespace)
    with pytest.raises(ApiException) as caught:
        kubernetes.client.CoreV1Api(client).list_node()
    assert caught.value.status == 401


def test_the_audit_log_says_who_asked_for_what_and_by_which_right(
    api: RunningSandbox, namespace: str
) -> None:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    core = kubernetes.client.CoreV1Api(grant(api, namespace, [rule]))
    core.list_namespaced_pod(namespace)
    refusal(core.read_namespaced_pod, "a", namespace)

    account = f"system:serviceaccount:{namespace}:default"
    lines = Path(api.state / "audit.log").read_text().splitlines()
    allowed, forbidden = (
        event for line in lines if (event := json.loads(line))["user"]["username"] == account
    )
    assert allowed["verb"] == "list"
    assert allowed["objectRef"] == {"resource": "pods", "namespace": namespace, "apiVersion": "v1"}
    assert allowed["responseStatus"]["code"] == 200
    assert f'Role "{namespace}-granted"' in allowed["annotations"]["authorization.k8s.io/reason"]
    assert forbidden["annotations"]["authorization.k8s.io/decision"] == "forbid"
    assert (forbidden["verb"], forbidden["responseStatus"]["code"]) == ("get", 403)
