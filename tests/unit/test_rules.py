"""Recording rules and alerts, by promtool: each alert fires and keeps silent, and has a runbook."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from drafter_sandbox.observe.prometheus import prometheus_tool

REPOSITORY = Path(__file__).resolve().parents[2]
RULES = REPOSITORY / "charts/drafter-operator/rules/drafter.yaml"
CASES = Path(__file__).parent / "rules/drafter.test.yaml"
BASE = "https://github.com/drafters-dev/drafter-operator/blob/main/"


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = prometheus_tool("promtool")
    if program is None:
        pytest.skip("promtool is neither on the PATH nor fetched: run make prometheus")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def test_every_case_of_the_rules_holds() -> None:
    done = promtool("test", "rules", str(CASES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_no_fault_in_the_rules() -> None:
    done = promtool("check", "rules", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_keeps_silent() -> None:
    fires, silent = set(), set()
    for case in yaml.safe_load(CASES.read_text())["tests"]:
        for expected in case.get("alert_rule_test", ()):
            (fires if expected["exp_alerts"] else silent).add(expected["alertname"])
    names = {alert["alert"] for alert in alerts()}
    assert fires == names
    assert silent == names


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: str(alert["alert"]))
def test_an_alert_leads_to_its_runbook(alert: dict[str, Any]) -> None:
    page = REPOSITORY / alert["annotations"]["runbook_url"].removeprefix(BASE)
    assert page == REPOSITORY / "docs/runbooks" / f"{alert['alert']}.md"
    headings = [line for line in page.read_text().splitlines() if line.startswith("#")]
    assert headings == [f"# {alert['alert']}", "## Meaning", "## How to see it", "## Way out"]


def test_every_runbook_belongs_to_an_alert() -> None:
    pages = {page.stem for page in (REPOSITORY / "docs/runbooks").glob("*.md")}
    assert pages == {alert["alert"] for alert in alerts()}
