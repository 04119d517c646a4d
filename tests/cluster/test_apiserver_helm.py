from __future__ import annotations

from pathlib import Path

import pytest
from running_sandbox import RunningSandbox

FILES = {
    "Chart.yaml": "apiVersion: v2\nname: tiny\nversion: 0.1.0\n",
    "values.yaml": "text: one\nextra: true\n",
    "crds/crd.yaml": """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: charted.example.org}
spec:
  group: example.org
  scope: Namespaced
  names: {plural: charted, kind: Charted}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
""",
    "templates/objects.yaml": """
apiVersion: v1
kind: ConfigMap
metadata: {name: "{{ .Release.Name }}-text"}
data: {text: "{{ .Values.text }}"}
---
apiVersion: v1
kind: Service
metadata: {name: "{{ .Release.Name }}"}
spec:
  selector: {app: tiny}
  ports: [{name: http, port: 80}]
---
apiVersion: example.org/v1
kind: Charted
metadata: {name: "{{ .Release.Name }}"}
spec: {text: "{{ .Values.text }}"}
{{- if .Values.extra }}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: "{{ .Release.Name }}-extra"}
{{- end }}
""",
}


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "tiny" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tiny"


def test_a_release_is_installed_upgraded_rolled_back_and_removed(
    api: RunningSandbox, namespace: str, chart: Path
) -> None:
    def helm(*arguments: str) -> str:
        return api.run("helm", "-n", namespace, *arguments).stdout

    def text() -> str:
        return api.kubectl(
            "-n", namespace, "get", "configmap", "rel-text", "-o", "jsonpath={.data.text}"
        )

    helm("install", "rel", str(chart), "--wait", "--timeout", "20s")
    assert text() == "one"
    assert api.get("charted", "rel", "-n", namespace)["spec"] == {"text": "one"}
    helm("upgrade", "rel", str(chart), "--set", "text=two,extra=false", "--wait")
    assert text() == "two"
    assert "not found" in api.refused("-n", namespace, "get", "serviceaccount", "rel-extra")
    helm("rollback", "rel", "1", "--wait")
    assert text() == "one"
    assert "STATUS: deployed" in helm("status", "rel")
    assert len(helm("history", "rel").strip().splitlines()) == 4
    helm("uninstall", "rel", "--wait")
    assert "not found" in api.refused("-n", namespace, "get", "configmap", "rel-text")
    assert "not found" in api.refused("-n", namespace, "get", "service", "rel")
