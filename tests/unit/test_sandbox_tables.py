from __future__ import annotations

from typing import Any

import pytest

from drafter_sandbox import jsonpath
from drafter_sandbox.resources import Registry
from drafter_sandbox.tables import duration, pod_status, table


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (150, "2m30s"),
        (659, "10m"),
        (3 * 3600 + 60, "3h1m"),
        (8 * 3600, "8h"),
        (47 * 3600, "47h"),
        (50 * 3600, "2d2h"),
        (9 * 86400, "9d"),
        (800 * 86400, "2y70d"),
        (-5, "<invalid>"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def container(**state: Any) -> dict[str, Any]:
    return {"state": state, "ready": "running" in state}


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"phase": "Pending"}, "Pending"),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        (
            {
                "phase": "Pending",
                "containerStatuses": [container(waiting={"reason": "ImagePullBackOff"})],
            },
            "ImagePullBackOff",
        ),
        (
            {
                "phase": "Running",
                "containerStatuses": [
                    container(running={}),
                    container(terminated={"exitCode": 0, "reason": "Completed"}),
                ],
            },
            "Running",
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": [container(terminated={"exitCode": 3})],
            },
            "ExitCode:3",
        ),
        (
            {
                "phase": "Pending",
                "initContainerStatuses": [
                    container(terminated={"exitCode": 0}),
                    container(running={}),
                ],
            },
            "Init:1/2",
        ),
    ],
)
def test_a_pod_has_one_word_for_its_state(status: dict[str, Any], text: str) -> None:
    assert pod_status({"metadata": {}, "status": status}) == text


def test_a_deleted_pod_is_terminating() -> None:
    body = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {}}
    assert pod_status(body) == "Terminating"


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        ([], "Running"),
        (["SuccessCriteriaMet"], "SuccessCriteriaMet"),
        (["SuccessCriteriaMet", "Complete"], "Complete"),
        (["FailureTarget", "Failed"], "Failed"),
        (["Suspended"], "Suspended"),
    ],
)
def test_a_job_has_one_word_for_its_state(conditions: list[str], text: str) -> None:
    body = {
        "metadata": {"name": "job"},
        "spec": {},
        "status": {"conditions": [{"type": kind, "status": "True"} for kind in conditions]},
    }
    (row,) = table(Registry().find("batch", "jobs"), [body], {})["rows"]
    assert row["cells"][1] == text


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", [1]),
        ("{.a.b}", [1]),
        (".list[0].n", [1]),
        (".list[-1].n", [3]),
        (".list[*].n", [1, 2, 3]),
        (".list[?(@.n>1)].name", ["y", "z"]),
        ('.list[?(@.name=="y")].n', [2]),
        (".list[?(@.name!='y')].n", [1, 3]),
        ("['dotted.key']", [7]),
        (r".dotted\.key", [7]),
        (".missing.b", []),
        (".list[9]", []),
    ],
)
def test_json_paths(path: str, found: list[Any]) -> None:
    body = {
        "a": {"b": 1},
        "dotted.key": 7,
        "list": [{"name": "x", "n": 1}, {"name": "y", "n": 2}, {"name": "z", "n": 3}],
    }
    assert jsonpath.find(path, body) == found


def test_a_path_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="JSONPath"):
        jsonpath.find("..a", {})
