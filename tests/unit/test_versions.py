from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

from drafter_operator.api.spec import DEFAULT_JOB_IMAGE

REPOSITORY = Path(__file__).parents[2]


def test_package_chart_and_default_image_have_one_version() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((REPOSITORY / "charts/drafter-operator/Chart.yaml").read_text())

    version = project["version"]
    assert chart["version"] == version
    assert chart["appVersion"] == version
    assert DEFAULT_JOB_IMAGE.rsplit(":", 1)[1] == version
