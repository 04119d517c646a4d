"""README.md of the chart: a table of its values, from the ``# --`` comments in values.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

_MARK = "# -- "
_INTRODUCTION = """\
# drafter-operator

<!-- Written from values.yaml by `make generate`; do not edit. -->

Installs the operator that looks after `DrafterRun`s, with its CustomResourceDefinition.

```
helm install drafter-operator charts/drafter-operator --namespace drafter-system --create-namespace
helm test drafter-operator --namespace drafter-system
```

| what | how |
|---|---|
| upgrade | `helm upgrade drafter-operator charts/drafter-operator --namespace drafter-system`: the CustomResourceDefinition is a template, so that it is upgraded too. Runs in flight go on: their Jobs are never applied again. |
| roll back | `helm rollback drafter-operator --namespace drafter-system` |
| uninstall | `helm uninstall drafter-operator --namespace drafter-system` keeps the CustomResourceDefinition and with it every run; servers go on serving, and a new installation of the same release goes on with the runs, within 15 s of the old one's last sign of life: its Lease stays too. `kubectl delete crd drafterruns.drafters.dev` removes them all. |
| some namespaces only | `--set watchNamespaces={team-a,team-b}`: a Role in each in the place of the ClusterRole. The namespaces must exist. |
| rights | [docs/rights.md](../../docs/rights.md) |

One operator acts at a time, so that there is one replica and the strategy `Recreate`. A
PodDisruptionBudget is off by default: with one replica it protects nothing and blocks the drain of
a node. The work itself goes on in Jobs and servers while the operator moves.

## Values

| value | default | meaning |
|---|---|---|
"""  # noqa: E501


class UnexplainedValueError(Exception):
    """A value of the chart has no comment."""


@dataclass(frozen=True)
class Value:
    """One value of the chart.

    Attributes
    ----------
    path
        Its keys, joined by dots.
    default
        As JSON.
    """

    path: str
    default: str
    meaning: str


def chart_values(text: str) -> list[Value]:
    """Return the values that a values.yaml explains, in order.

    A value is explained by the comment right above it, whose first line begins with ``# --``. Of
    a map that is explained itself, the keys need no comments of their own.

    Raises
    ------
    UnexplainedValueError
        A value has no such comment.
    """
    return list(_values(yaml.compose(text, Loader=yaml.SafeLoader), text.splitlines(), ""))


def _values(node: yaml.Node | None, lines: Sequence[str], prefix: str) -> Iterator[Value]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = f"{prefix}{key.value}"
        meaning = _comment(lines, key.start_mark.line)
        if meaning:
            yield Value(path, json.dumps(_plain(value)), meaning)
        elif isinstance(value, yaml.MappingNode) and value.value:
            yield from _values(value, lines, f"{path}.")
        else:
            raise UnexplainedValueError(f"values.yaml: put a line '# -- …' above {path}")


def _plain(node: yaml.Node) -> Any:
    return yaml.safe_load(yaml.serialize(node))


def _comment(lines: Sequence[str], line: int) -> str:
    found: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        text = lines[line].strip()
        if text.startswith(_MARK):
            return " ".join([text.removeprefix(_MARK), *found])
        found.insert(0, text.removeprefix("#").strip())
    return ""


def chart_readme(values: str) -> str:
    """Return README.md for the text of a values.yaml."""
    rows = "".join(
        f"| `{value.path}` | `{value.default}` | {value.meaning.replace('|', chr(92) + '|')} |\n"
        for value in chart_values(values)
    )
    return _INTRODUCTION + rows
