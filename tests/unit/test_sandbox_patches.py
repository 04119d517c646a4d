from __future__ import annotations

from typing import Any

import pytest

from drafter_sandbox.errors import ApiError
from drafter_sandbox.patches import json_patch, merge_patch, strategic_merge_patch
from drafter_sandbox.schemas import definitions

POD = definitions()["io.k8s.api.core.v1.Pod"]
OBJECT = {
    "metadata": {"finalizers": ["a", "b"], "labels": {"x": "1", "y": "2"}},
    "spec": {
        "containers": [
            {"name": "one", "image": "i:1", "env": [{"name": "A", "value": "1"}]},
            {"name": "two", "image": "i:2", "command": ["x", "y"]},
        ],
        "volumes": [{"name": "v", "emptyDir": {}}],
        "nodeSelector": {"disk": "ssd"},
    },
}


def patched(patch: dict[str, Any]) -> dict[str, Any]:
    return strategic_merge_patch(POD, OBJECT, patch)


def test_lists_with_a_key_merge_by_it_and_others_are_replaced() -> None:
    result = patched(
        {"spec": {"containers": [{"name": "two", "command": ["z"]}, {"name": "three"}]}}
    )
    assert result["spec"]["containers"] == [
        OBJECT["spec"]["containers"][0],
        {"name": "two", "image": "i:2", "command": ["z"]},
        {"name": "three"},
    ]
    assert OBJECT["spec"]["containers"][1]["command"] == ["x", "y"]


def test_directives_delete_replace_order_and_retain() -> None:
    deleted = patched({"spec": {"containers": [{"name": "one", "$patch": "delete"}]}})
    assert [item["name"] for item in deleted["spec"]["containers"]] == ["two"]
    replaced = patched({"spec": {"containers": [{"name": "new"}, {"$patch": "replace"}]}})
    assert replaced["spec"]["containers"] == [{"name": "new"}]
    cleared = patched({"spec": {"nodeSelector": {"$patch": "replace", "gpu": "yes"}}})
    assert cleared["spec"]["nodeSelector"] == {"gpu": "yes"}
    ordered = patched({"spec": {"$setElementOrder/containers": [{"name": "two"}, {"name": "one"}]}})
    assert [item["name"] for item in ordered["spec"]["containers"]] == ["two", "one"]
    swapped = patched(
        {
            "spec": {
                "volumes": [
                    {"name": "v", "$retainKeys": ["name", "secret"], "secret": {"secretName": "s"}}
                ]
            }
        }
    )
    assert swapped["spec"]["volumes"] == [{"name": "v", "secret": {"secretName": "s"}}]


def test_plain_lists_and_maps() -> None:
    result = patched({"metadata": {"finalizers": ["c"], "labels": {"x": None, "z": "3"}}})
    assert result["metadata"] == {"finalizers": ["a", "b", "c"], "labels": {"y": "2", "z": "3"}}
    result = patched({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}})
    assert result["metadata"]["finalizers"] == ["b"]


def test_an_item_without_its_key_is_refused() -> None:
    with pytest.raises(ApiError, match="merge key: name"):
        patched({"spec": {"containers": [{"image": "x"}]}})


def test_merge_patch_replaces_lists_and_drops_nulls() -> None:
    assert merge_patch({"a": [1], "b": {"c": 1}}, {"a": [2], "b": {"c": None, "d": {}}}) == {
        "a": [2],
        "b": {"d": {}},
    }


def test_json_patch_leaves_the_original_alone() -> None:
    original = {"a": {"b": 1}}
    assert json_patch(original, [{"op": "remove", "path": "/a/b"}]) == {"a": {}}
    assert original == {"a": {"b": 1}}
