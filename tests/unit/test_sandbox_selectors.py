from __future__ import annotations

from typing import Any

import pytest

from drafter_sandbox.errors import ApiError
from drafter_sandbox.selectors import field_predicate, label_predicate

BODY: dict[str, Any] = {
    "metadata": {"name": "x", "labels": {"app": "web", "tier": "front"}},
    "status": {"phase": "Running", "ready": True},
}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, True),
        ("", True),
        ("app=web,tier==front", True),
        ("app=web,tier!=front", False),
        ("app in (api, web),other notin (x)", True),
        ("app notin (web)", False),
        ("app,!other", True),
        ("other", False),
        ({"app": "web"}, True),
        ({"matchLabels": {"app": "api"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_labels(selector: Any, matches: bool) -> None:
    assert label_predicate(selector)(BODY) is matches


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("metadata.name=x,status.phase!=Failed", True),
        ("status.phase==Pending", False),
        ("spec.nodeName=", True),
        ("spec.nodeName!=", False),
        ("status.ready=true", True),
    ],
)
def test_fields(selector: str, matches: bool) -> None:
    assert field_predicate(selector)(BODY) is matches


def test_what_is_no_selector_is_refused() -> None:
    with pytest.raises(ApiError, match="requirement"):
        label_predicate("a b")
    with pytest.raises(ApiError, match="operator"):
        label_predicate({"matchExpressions": [{"key": "a", "operator": "Like"}]})
    with pytest.raises(ApiError, match="field selector"):
        field_predicate("metadata.name")
