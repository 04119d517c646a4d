"""Write what is generated, or check that it has not drifted from its source.

``python -m drafter_operator.generate [--check]``, run by ``make generate`` and ``make lint``.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

import yaml

from drafter_operator.api.crd import custom_resource_definition
from drafter_operator.api.reference import api_reference
from drafter_operator.chart_reference import chart_readme
from drafter_operator.dashboards.boards import dashboard_files
from drafter_operator.metrics_reference import metrics_reference
from drafter_operator.rights import rights_reference, role_templates

REPOSITORY = Path(__file__).resolve().parents[2]
CHART = Path("charts/drafter-operator")
NOTICE = "# Written from operator/drafter_operator/api/ by `make generate`; do not edit.\n"


class _Dumper(yaml.SafeDumper):
    """Quotes numbers in text, some of which PyYAML leaves bare: ``1e-4`` is a number to others."""


def _text(dumper: _Dumper, value: str) -> yaml.Node:
    numeric = value[:1].isdigit()
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="'" if numeric else None)


_Dumper.add_representer(str, _text)


def dump_yaml(body: object) -> str:
    """Return an object as YAML that every parser reads alike."""
    return yaml.dump(body, Dumper=_Dumper, sort_keys=False, width=100, allow_unicode=True)


def generated_files() -> dict[Path, str]:
    """Return the text of every generated file by its path inside the repository."""
    definition = custom_resource_definition()
    kept = {
        **definition,
        "metadata": {
            **definition["metadata"],
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
    }
    return {
        Path("crds/drafters.dev_drafterruns.yaml"): NOTICE + dump_yaml(definition),
        CHART / "templates/crd.yaml": (
            NOTICE + "{{- if .Values.crds.enabled }}\n" + dump_yaml(kept) + "{{- end }}\n"
        ),
        CHART / "templates/_rules.tpl": (
            "{{- /* Written from operator/drafter_operator/rights.py by `make generate`; do not"
            " edit. */ -}}\n" + role_templates()
        ),
        **{CHART / "dashboards" / name: text for name, text in dashboard_files().items()},
        CHART / "README.md": chart_readme(
            (REPOSITORY / CHART / "values.yaml").read_text(encoding="utf-8")
        ),
        Path("docs/api.md"): api_reference(),
        Path("docs/rights.md"): rights_reference(),
        Path("docs/metrics.md"): metrics_reference(
            yaml.safe_load((REPOSITORY / CHART / "rules/drafter.yaml").read_text(encoding="utf-8"))
        ),
    }


def main() -> None:
    """Write the files, or exit with 1 and the differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    check = parser.parse_args().check
    drifted = False
    for relative, text in generated_files().items():
        path = REPOSITORY / relative
        present = path.read_text(encoding="utf-8") if path.exists() else ""
        if present == text:
            continue
        if check:
            drifted = True
            sys.stdout.writelines(
                difflib.unified_diff(
                    present.splitlines(keepends=True),
                    text.splitlines(keepends=True),
                    f"{relative} (present)",
                    f"{relative} (generated)",
                )
            )
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {relative}")
    if drifted:
        sys.exit("generated files have drifted from their source: run make generate")


if __name__ == "__main__":
    main()
