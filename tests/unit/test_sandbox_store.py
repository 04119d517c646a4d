from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from drafter_sandbox.admission import ServerAdmission
from drafter_sandbox.errors import ApiError
from drafter_sandbox.expiry import expire_events
from drafter_sandbox.store import Store

MAPS = "configmaps"


def body(name: str, owner: dict[str, Any] | None = None, **meta: Any) -> dict[str, Any]:
    if owner:
        meta["ownerReferences"] = [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "blockOwnerDeletion": True,
            }
        ]
    return {"metadata": {"name": name, **meta}}


def pod(**spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "image": "example/app:1"}]
    return {"metadata": {"name": "pod"}, "spec": {"containers": containers, **spec}}


def names(store: Store) -> list[str]:
    return [item["metadata"]["name"] for item in store.list(MAPS, "default")]


@pytest.fixture
def store() -> Store:
    return Store(None, ServerAdmission())


def test_what_is_handed_out_is_a_copy(store: Store) -> None:
    given = body("a", labels={"x": "1"})
    made = store.create(MAPS, "default", given)
    made["metadata"]["labels"]["x"] = "2"
    given["metadata"]["labels"]["x"] = "3"
    store.list(MAPS)[0]["metadata"]["labels"]["x"] = "4"
    found = store.get(MAPS, "default", "a")
    assert found is not None
    assert found["metadata"]["labels"] == {"x": "1"}


def test_a_write_that_changes_nothing_is_no_change(store: Store) -> None:
    made = store.create("pods", "default", pod())
    again = store.update("pods", "default", "pod", made)
    same = store.patch_status("pods", "default", "pod", lambda status: None)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert same["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


def test_generation_counts_changes_of_the_wanted_state_only(store: Store) -> None:
    made = store.create("pods", "default", pod())
    store.patch_status("pods", "default", "pod", lambda status: status.update(phase="Running"))
    made["spec"]["activeDeadlineSeconds"] = 5
    made["metadata"].pop("resourceVersion")
    made["metadata"]["labels"] = {"a": "b"}
    changed = store.update("pods", "default", "pod", made)
    assert changed["metadata"]["generation"] == 2
    assert changed["status"]["phase"] == "Running"


def test_a_refused_write_leaves_no_trace(store: Store) -> None:
    made = store.create("pods", "default", pod())
    before = store.resource_version
    broken = {**made, "spec": {**made["spec"], "containers": []}}
    with pytest.raises(ApiError) as caught:
        store.update("pods", "default", "pod", broken)
    assert caught.value.code == 422
    assert store.resource_version == before
    assert store.get("pods", "default", "pod") == made


def test_services_get_addresses_of_their_own(store: Store) -> None:
    def service(name: str, **spec: Any) -> str:
        made = store.create(
            "services", "default", {**body(name), "spec": {"ports": [{"port": 80}], **spec}}
        )
        return str(made["spec"].get("clusterIP"))

    assert service("a") == "127.96.0.1"
    assert service("b") == "127.96.0.2"
    assert service("headless", clusterIP="None") == "None"
    assert service("elsewhere", type="ExternalName", externalName="example.org") == "None"
    store.delete("services", "default", "a")
    assert service("c") == "127.96.0.1"


def test_an_object_with_two_owners_goes_with_the_last(store: Store) -> None:
    first, second = (store.create(MAPS, "default", body(name)) for name in ("first", "second"))
    child = body("child", first)
    child["metadata"]["ownerReferences"] += body("x", second)["metadata"]["ownerReferences"]
    store.create(MAPS, "default", child)
    store.delete(MAPS, "default", "first")
    assert names(store) == ["child", "second"]
    store.delete(MAPS, "default", "second")
    assert names(store) == []


def test_a_pod_on_a_node_leaves_when_the_node_says_so(store: Store) -> None:
    made = store.create("pods", "default", pod(nodeName="node", terminationGracePeriodSeconds=9))
    left = store.delete("pods", "default", "pod")
    assert left is not None
    assert left["metadata"]["deletionGracePeriodSeconds"] == 9
    store.remove("pods", "default", "pod", uid="that of an earlier pod")
    assert store.get("pods", "default", "pod") is not None
    store.remove("pods", "default", "pod", uid=made["metadata"]["uid"])
    assert store.get("pods", "default", "pod") is None
    store.remove("pods", "default", "pod")


def test_a_pod_that_has_ended_goes_at_once(store: Store) -> None:
    store.create("pods", "default", pod(nodeName="node"))
    store.patch_status("pods", "default", "pod", lambda status: status.update(phase="Failed"))
    assert store.delete("pods", "default", "pod") is None


def test_a_removed_pod_with_a_finalizer_waits_for_it(store: Store) -> None:
    held = pod(nodeName="node")
    held["metadata"]["finalizers"] = ["example.org/hold"]
    store.create("pods", "default", held)
    store.delete("pods", "default", "pod")
    store.remove("pods", "default", "pod")
    waiting = store.get("pods", "default", "pod")
    assert waiting is not None
    del waiting["metadata"]["finalizers"]
    store.update("pods", "default", "pod", waiting)
    assert store.get("pods", "default", "pod") is None


async def test_a_watch_begins_when_it_is_opened(store: Store) -> None:
    store.create(MAPS, "default", body("before"))
    watch = store.watch(MAPS, namespace="default")
    store.create(MAPS, "kube-system", body("elsewhere"))
    store.create(MAPS, "default", body("after"))
    store.delete(MAPS, "default", "before")
    watch.close()
    seen = [(event.type, event.object["metadata"]["name"]) async for event in watch]
    assert seen == [("ADDED", "before"), ("ADDED", "after"), ("DELETED", "before")]
    store.create(MAPS, "default", body("unseen"))


async def test_a_closed_watch_wakes_who_waits(store: Store) -> None:
    watch = store.watch(MAPS)
    waiting = asyncio.ensure_future(anext(watch, None))
    await asyncio.sleep(0)
    watch.close()
    assert await waiting is None


def test_changes_before_the_start_are_not_remembered(tmp_path: Path) -> None:
    path = tmp_path / "objects.sqlite"
    store = Store(path)
    before = store.resource_version
    store.create(MAPS, "default", body("a"))
    assert [e.object["metadata"]["name"] for e in _since(store, before)] == ["a"]
    store.close()
    store = Store(path)
    assert _since(store, store.resource_version) == []
    with pytest.raises(ApiError) as caught:
        _since(store, before)
    assert caught.value.code == 410
    store.close()


def _since(store: Store, version: str) -> list[Any]:
    return store.watch(MAPS, resource_version=version).queued()


@pytest.mark.parametrize("propagation", ["Foreground", "Background"])
def test_a_deletion_that_was_interrupted_is_finished_at_the_next_start(
    tmp_path: Path, propagation: Any
) -> None:
    path = tmp_path / "objects.sqlite"
    store = Store(path, ServerAdmission())
    owner = store.create(MAPS, "default", body("owner"))
    store.create(MAPS, "default", body("child", owner, finalizers=["example.org/hold"]))
    store.create(MAPS, "default", body("other"))
    store.delete(MAPS, "default", "owner", propagation=propagation)
    store.close()
    # As if the process had been killed between two of the writes of a deletion.
    gone = "child" if propagation == "Foreground" else "owner"
    with sqlite3.connect(path) as database:
        database.execute("DELETE FROM objects WHERE name=?", (gone,))
    store = Store(path, ServerAdmission())
    store.collect_garbage()
    left = store.get(MAPS, "default", "child")
    if left is not None:
        assert left["metadata"]["deletionTimestamp"]
        del left["metadata"]["finalizers"]
        store.update(MAPS, "default", "child", left)
    assert names(store) == ["other"]
    store.close()


def test_events_go_after_an_hour(store: Store) -> None:
    event = {
        **body("e"),
        "involvedObject": {"kind": "Pod", "namespace": "default", "name": "pod"},
        "lastTimestamp": "2020-01-01T00:00:00Z",
    }
    store.create("events", "default", event)
    assert expire_events(store) == 0
    assert expire_events(store, datetime.now(UTC) + timedelta(minutes=61)) == 1
    assert store.list("events") == []
