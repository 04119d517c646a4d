"""What a workflow names must exist. Its schema is checked by ``make lint``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yaml"))
PINNED = re.compile(r"^ *-? *uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
WRITES = {
    ("release.yaml", "images"): {"packages"},
    ("release.yaml", "chart"): {"packages"},
    ("release.yaml", "python-publish"): {"id-token"},
}
"""Each right to write, by file and job."""

parametrised = pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)


def jobs(workflow: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(workflow.read_text())["jobs"]
    return found


def commands(workflow: Path) -> Iterator[str]:
    for job in jobs(workflow).values():
        for step in job["steps"]:
            yield from step.get("run", "").splitlines()


def test_there_are_workflows() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yaml", "release.yaml"]


@parametrised
def test_every_target_of_make_exists(workflow: Path) -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))
    named = {
        word
        for command in commands(workflow)
        for words in re.findall(r"\bmake((?: +[a-z][\w-]*)+)", command)
        for word in words.split()
    }
    assert named <= targets, f"make has no {sorted(named - targets)}"
    if workflow.name == "ci.yaml":
        assert {"lint", "test", "test-images"} <= named


@parametrised
def test_every_path_exists(workflow: Path) -> None:
    top = "|".join(re.escape(path.name) for path in REPOSITORY.iterdir())
    pattern = re.compile(rf"(?<![\w./:-])((?:{top})(?:/[\w./-]+|\.\w+)?)(?![\w*$\"-])")
    for command in commands(workflow):
        for word in command.split():
            if "/" in word or re.search(r"\.(toml|txt|yaml|md)$", word):
                for named in pattern.findall(word):
                    assert (REPOSITORY / named).exists(), f"{named} in {command!r}"


def test_the_paths_are_found() -> None:
    """The pattern above would pass a workflow in which it finds nothing."""
    text = "\n".join(command for path in WORKFLOWS for command in commands(path))
    for named in ("charts/drafter-operator", "images/build", "examples/minimal.yaml"):
        assert named in text
        assert (REPOSITORY / named).exists()


@parametrised
def test_actions_are_pinned_by_commit_with_their_version(workflow: Path) -> None:
    lines = [line for line in workflow.read_text().splitlines() if "uses:" in line]
    assert lines
    for line in lines:
        assert PINNED.match(line), line


@parametrised
def test_rights_are_the_least(workflow: Path) -> None:
    assert yaml.safe_load(workflow.read_text())["permissions"] == {"contents": "read"}
    for name, job in jobs(workflow).items():
        rights = job.get("permissions", {})
        writes = {scope for scope, level in rights.items() if level == "write"}
        assert writes == WRITES.get((workflow.name, name), set()), name


@parametrised
def test_what_an_event_names_is_no_part_of_a_command(workflow: Path) -> None:
    """A branch's name may be a command; it is handed over in the environment."""
    for command in commands(workflow):
        assert "${{" not in command, command


def test_kind_runs_three_versions_that_the_chart_accepts() -> None:
    nodes = jobs(WORKFLOWS[0])["kind"]["strategy"]["matrix"]["node"]
    versions = {re.match(r"kindest/node:v1\.(\d+)\.\d+@sha256:[0-9a-f]{64}$", n) for n in nodes}
    assert None not in versions, nodes
    minors = {int(match[1]) for match in versions if match}
    assert len(minors) == 3
    chart = yaml.safe_load((REPOSITORY / "charts/drafter-operator/Chart.yaml").read_text())
    oldest = re.match(r">=1\.(\d+)\.0-0$", chart["kubeVersion"])
    assert oldest and min(minors) >= int(oldest[1])
