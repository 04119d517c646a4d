from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import aiohttp
import kopf
import kubernetes
import pytest
from kubernetes.client.exceptions import ApiException
from running_sandbox import RunningSandbox

TOY = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "toys.kopf.example.org"},
    "spec": {
        "group": "kopf.example.org",
        "scope": "Namespaced",
        "names": {"plural": "toys", "kind": "Toy"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"size": {"type": "integer"}},
                            },
                            "status": {
                                "type": "object",
                                "x-kubernetes-preserve-unknown-fields": True,
                            },
                        },
                    }
                },
            }
        ],
    },
}


def owner_of(body: Any, **extra: Any) -> dict[str, Any]:
    return {
        "api_version": "v1",
        "kind": "ConfigMap",
        "name": body.metadata.name,
        "uid": body.metadata.uid,
        **extra,
    }


def config_map(name: str, owners: list[dict[str, Any]] | None = None) -> Any:
    client = kubernetes.client
    references = [client.V1OwnerReference(**owner) for owner in owners or []]
    return client.V1ConfigMap(
        metadata=client.V1ObjectMeta(name=name, owner_references=references or None)
    )


@pytest.fixture
def core(api: RunningSandbox) -> Any:
    return kubernetes.client.CoreV1Api(api.client())


def names(core: Any, namespace: str) -> set[str]:
    return {item.metadata.name for item in core.list_namespaced_config_map(namespace).items}


def test_a_write_based_on_an_old_object_conflicts(core: Any, namespace: str) -> None:
    old = core.create_namespaced_config_map(namespace, config_map("x"))
    core.patch_namespaced_config_map("x", namespace, {"data": {"a": "1"}})
    old.data = {"a": "2"}
    with pytest.raises(ApiException) as caught:
        core.replace_namespaced_config_map("x", namespace, old)
    assert caught.value.status == 409
    assert "the object has been modified" in caught.value.body
    with pytest.raises(ApiException) as caught:
        core.create_namespaced_config_map(namespace, config_map("x"))
    assert '"reason":"AlreadyExists"' in caught.value.body


def test_a_watch_resumes_where_a_list_ended(core: Any, namespace: str) -> None:
    core.create_namespaced_config_map(namespace, config_map("before"))
    version = core.list_namespaced_config_map(namespace).metadata.resource_version
    core.create_namespaced_config_map(namespace, config_map("after"))
    core.delete_namespaced_config_map("before", namespace)
    stream = kubernetes.watch.Watch().stream(
        core.list_namespaced_config_map, namespace, resource_version=version, timeout_seconds=1
    )
    seen = [(event["type"], event["object"].metadata.name) for event in stream]
    assert seen == [("ADDED", "after"), ("DELETED", "before")]


def test_a_selecting_watch_sees_objects_enter_and_leave(core: Any, namespace: str) -> None:
    version = core.list_namespaced_config_map(namespace).metadata.resource_version
    core.create_namespaced_config_map(namespace, config_map("x"))
    for value in ("yes", "no"):
        core.patch_namespaced_config_map("x", namespace, {"metadata": {"labels": {"in": value}}})
    stream = kubernetes.watch.Watch().stream(
        core.list_namespaced_config_map,
        namespace,
        label_selector="in=yes",
        resource_version=version,
        timeout_seconds=1,
    )
    assert [event["type"] for event in stream] == ["ADDED", "DELETED"]


def test_dependents_go_with_their_owner(core: Any, namespace: str) -> None:
    owner = core.create_namespaced_config_map(namespace, config_map("owner"))
    child = core.create_namespaced_config_map(namespace, config_map("child", [owner_of(owner)]))
    core.create_namespaced_config_map(namespace, config_map("grandchild", [owner_of(child)]))
    core.delete_namespaced_config_map("owner", namespace)
    assert names(core, namespace) == set()


def test_dependents_stay_when_orphaned(core: Any, namespace: str) -> None:
    owner = core.create_namespaced_config_map(namespace, config_map("owner"))
    core.create_namespaced_config_map(namespace, config_map("child", [owner_of(owner)]))
    core.delete_namespaced_config_map("owner", namespace, propagation_policy="Orphan")
    assert names(core, namespace) == {"child"}
    child = core.read_namespaced_config_map("child", namespace)
    assert child.metadata.owner_references is None


def test_a_foreground_deletion_waits_for_blocking_dependents(core: Any, namespace: str) -> None:
    owner = core.create_namespaced_config_map(namespace, config_map("owner"))
    child = config_map("child", [owner_of(owner, block_owner_deletion=True)])
    child.metadata.finalizers = ["example.org/hold"]
    core.create_namespaced_config_map(namespace, child)
    core.delete_namespaced_config_map("owner", namespace, propagation_policy="Foreground")
    waiting = core.read_namespaced_config_map("owner", namespace)
    assert waiting.metadata.finalizers == ["foregroundDeletion"]
    assert core.read_namespaced_config_map("child", namespace).metadata.deletion_timestamp
    core.patch_namespaced_config_map("child", namespace, {"metadata": {"finalizers": None}})
    assert names(core, namespace) == set()


def test_an_object_whose_owner_never_existed_is_collected(core: Any, namespace: str) -> None:
    lost = {"api_version": "v1", "kind": "ConfigMap", "name": "gone", "uid": "no-such-uid"}
    core.create_namespaced_config_map(namespace, config_map("lost", [lost]))
    core.create_namespaced_config_map(namespace, config_map("kept"))
    assert names(core, namespace) == {"kept"}


def test_deletion_checks_its_preconditions(core: Any, namespace: str) -> None:
    core.create_namespaced_config_map(namespace, config_map("x"))
    options = kubernetes.client.V1DeleteOptions(
        preconditions=kubernetes.client.V1Preconditions(uid="another")
    )
    with pytest.raises(ApiException) as caught:
        core.delete_namespaced_config_map("x", namespace, body=options)
    assert caught.value.status == 409
    core.delete_collection_namespaced_config_map(namespace)
    assert names(core, namespace) == set()


def test_a_pod_on_a_node_is_only_marked_and_one_without_goes_at_once(
    core: Any, namespace: str
) -> None:
    client = kubernetes.client

    def pod(name: str, node: str | None) -> Any:
        return client.V1Pod(
            metadata=client.V1ObjectMeta(name=name),
            spec=client.V1PodSpec(
                node_name=node, containers=[client.V1Container(name="c", image="i")]
            ),
        )

    core.create_namespaced_pod(namespace, pod("free", None))
    core.create_namespaced_pod(namespace, pod("bound", "node"))
    core.delete_namespaced_pod("free", namespace)
    core.delete_namespaced_pod("bound", namespace, grace_period_seconds=7)
    (left,) = core.list_namespaced_pod(namespace).items
    assert left.metadata.name == "bound"
    assert left.metadata.deletion_grace_period_seconds == 7
    core.delete_namespaced_pod("bound", namespace, grace_period_seconds=0)
    assert core.list_namespaced_pod(namespace).items == []


def test_a_pod_is_bound_evicted_and_its_account_gets_a_token(core: Any, namespace: str) -> None:
    client = kubernetes.client
    container = client.V1Container(name="c", image="i")
    core.create_namespaced_pod(
        namespace,
        client.V1Pod(
            metadata=client.V1ObjectMeta(name="pod"), spec=client.V1PodSpec(containers=[container])
        ),
    )
    meta = client.V1ObjectMeta(name="pod")
    binding = client.V1Binding(metadata=meta, target=client.V1ObjectReference(name="node-1"))
    core.create_namespaced_pod_binding("pod", namespace, binding, _preload_content=False)
    assert core.read_namespaced_pod("pod", namespace).spec.node_name == "node-1"
    eviction = client.V1Eviction(metadata=meta, delete_options=client.V1DeleteOptions())
    core.create_namespaced_pod_eviction("pod", namespace, eviction, _preload_content=False)
    assert core.read_namespaced_pod("pod", namespace).metadata.deletion_timestamp
    request = client.AuthenticationV1TokenRequest(spec=client.V1TokenRequestSpec(audiences=["x"]))
    token = core.create_namespaced_service_account_token("default", namespace, request).status.token
    review = client.V1TokenReview(spec=client.V1TokenReviewSpec(token=token))
    answer = client.AuthenticationV1Api(core.api_client).create_token_review(review)
    assert answer.status.user.username == f"system:serviceaccount:{namespace}:default"


async def test_only_the_token_opens_the_door(api: RunningSandbox) -> None:
    configuration = api.client().configuration
    async with aiohttp.ClientSession(configuration.host) as session:
        async with session.get("/healthz", ssl=False) as response:
            assert response.status == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            async with session.get("/api/v1/pods", headers=headers, ssl=False) as response:
                assert response.status == 401
                assert (await response.json())["reason"] == "Unauthorized"
    assert api.kubeconfig.stat().st_mode & 0o077 == 0


def test_state_survives_a_restart(tmp_path: Path) -> None:
    sandbox = RunningSandbox(tmp_path).start()
    core = kubernetes.client.CoreV1Api(sandbox.client())
    owner = core.create_namespaced_config_map("default", config_map("owner"))
    core.create_namespaced_config_map("default", config_map("child", [owner_of(owner)]))
    sandbox.apply(TOY)
    old = core.list_namespaced_config_map("default").metadata.resource_version
    kubeconfig = sandbox.kubeconfig.read_text()
    watching = sandbox.popen("kubectl", "get", "configmaps", "-w")
    assert watching.stdout is not None
    watching.stdout.readline()
    begin = time.monotonic()
    assert sandbox.stop() == 0
    assert time.monotonic() - begin < 3
    watching.wait(timeout=10)
    sandbox.start()
    try:
        assert sandbox.kubeconfig.read_text() == kubeconfig
        core = kubernetes.client.CoreV1Api(sandbox.client())
        found = core.read_namespaced_config_map("owner", "default")
        assert found.metadata.uid == owner.metadata.uid
        listed = core.list_namespaced_config_map("default").metadata.resource_version
        assert int(listed) >= int(old)
        assert sandbox.get("toys")["items"] == []
        with pytest.raises(ApiException) as caught:
            list(
                kubernetes.watch.Watch().stream(
                    core.list_namespaced_config_map,
                    "default",
                    resource_version="2",
                    timeout_seconds=1,
                )
            )
        assert caught.value.status == 410
        core.delete_namespaced_config_map("owner", "default")
        assert names(core, "default") == set()
    finally:
        sandbox.stop()


def test_a_second_sandbox_says_what_is_in_the_way(tmp_path: Path) -> None:
    first = RunningSandbox(tmp_path / "first").start()
    port = first.client().configuration.host.rsplit(":", 1)[1]
    try:
        for state, arguments, message in (
            (first.state, [], "uses the state folder"),
            (tmp_path / "other", ["--port", port], f"port {port} is in use by another program"),
        ):
            done = first.run(
                "drafter-sandbox", "start", "--state", str(state), *arguments, check=False
            )
            assert done.returncode == 1
            assert message in done.stderr
            assert len(done.stderr.strip().splitlines()) == 1
    finally:
        first.stop()


@pytest.mark.parametrize("name", ["objects.sqlite", "tokens.json", "server.crt"])
def test_state_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    sandbox = RunningSandbox(tmp_path / "state").start()
    sandbox.stop()
    for path in sandbox.state.glob(f"{name}*"):
        path.write_bytes(b"damaged" * 1000)
    arguments = ["start", "--state", str(sandbox.state)]
    done = sandbox.run("drafter-sandbox", *arguments, check=False)
    assert done.returncode == 1
    assert "cannot be read" in done.stderr
    assert "--state" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kopf_operator_lives_a_whole_life(
    api: RunningSandbox, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    api.apply(TOY)
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)
    calls: list[str] = []

    @kopf.on.create("kopf.example.org", "v1", "toys", id="created", registry=registry)
    def created(spec: Any, body: Any, patch: Any, **_: Any) -> dict[str, int]:
        kopf.info(body, reason="Assembled", message="all parts are in place")
        calls.append("create")
        patch.status["phase"] = "Made"
        return {"size": spec["size"]}

    @kopf.on.update("kopf.example.org", "v1", "toys", id="updated", registry=registry)
    def updated(spec: Any, patch: Any, **_: Any) -> None:
        calls.append("update")
        patch.status["phase"] = f"Size{spec['size']}"

    @kopf.on.delete("kopf.example.org", "v1", "toys", id="deleted", registry=registry)
    def deleted(**_: Any) -> None:
        calls.append("delete")

    stop, ready = threading.Event(), threading.Event()
    operator = threading.Thread(
        target=lambda: asyncio.run(
            kopf.operator(
                registry=registry,
                namespaces=[namespace],
                stop_flag=stop,
                ready_flag=ready,
                standalone=True,
            )
        ),
        daemon=True,
    )
    operator.start()
    try:
        assert ready.wait(20)
        toy = {"apiVersion": "kopf.example.org/v1", "kind": "Toy", "metadata": {"name": "toy"}}
        at = ["-n", namespace]

        def wait(phase: str) -> None:
            condition = f"--for=jsonpath={{.status.phase}}={phase}"
            api.kubectl(*at, "wait", condition, "toy/toy", "--timeout=20s")

        api.apply({**toy, "spec": {"size": 1}}, arguments=at)
        wait("Made")
        found = api.get("toy", "toy", *at)
        assert found["status"]["created"] == {"size": 1}, found
        assert found["metadata"]["finalizers"] == ["kopf.zalando.org/KopfFinalizerMarker"]
        api.apply({**toy, "spec": {"size": 2}}, arguments=at)
        wait("Size2")
        api.kubectl(*at, "delete", "toy", "toy", "--timeout=20s")
        assert calls == ["create", "update", "delete"]
        core = kubernetes.client.CoreV1Api(api.client())
        events = kubernetes.watch.Watch().stream(
            core.list_namespaced_event, namespace, timeout_seconds=20
        )
        assert any(event["object"].reason == "Assembled" for event in events)
    finally:
        stop.set()
        operator.join(20)
    assert not operator.is_alive()
