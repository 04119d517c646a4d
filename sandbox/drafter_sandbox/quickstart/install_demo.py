"""``make install-demo``: the chart in the sandbox and the smallest run, as an administrator does.

Every command is shown as it is run, with real helm and kubectl; they do the same on a cluster.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

from rich.console import Console

from drafter_sandbox.quickstart import preflight
from drafter_sandbox.quickstart.cluster import (
    NAMESPACE,
    OPERATOR_NAMESPACE,
    Cluster,
    Layout,
    QuickstartError,
    end_well_on_signals,
    model_volume,
)
from drafter_sandbox.quickstart.view import duration

RUN = "install-demo"
MANIFEST = "examples/install-demo.yaml"
CHART = "charts/drafter-operator"
RELEASE = "drafter-operator"
PROMPTS = {"train.jsonl": 48, "held_out.jsonl": 4}
"""Files of examples/prompts, and how many of their lines are used."""

TIMEOUT = "15m"
REPOSITORY = Path(__file__).resolve().parents[3]


def _make_target(directory: Path) -> None:
    if (directory / "config.json").is_file():
        return
    # torch and transformers take seconds to import.
    from drafter_sandbox.quickstart.tiny_target import make_predictable, make_tiny_target

    beside = make_tiny_target(directory.with_name(f".{directory.name}.new"))
    make_predictable(beside)
    beside.rename(directory)


class _Demo:
    def __init__(self, cluster: Cluster, console: Console) -> None:
        self._cluster = cluster
        self._console = console

    def show(self, command: str) -> str:
        """Run a command of helm or kubectl and print both it and what it prints."""
        self._console.print(f"\n$ {command}", style="bold", highlight=False, soft_wrap=True)
        output = self._cluster.run(shlex.split(command)).rstrip()
        self._console.print(output, highlight=False, markup=False, soft_wrap=True)
        return output

    def prepare(self) -> None:
        """Start the sandbox and put in what a cluster has: a model and prompts."""
        layout = self._cluster.layout
        self._console.print("==> target: a tiny Llama of random weights")
        _make_target(layout.models / "tiny")
        self._console.print("==> sandbox: Kubernetes-shaped; Pods are not isolated")
        self._cluster.start()
        data = {}
        for name, count in PROMPTS.items():
            text = (layout.repository / "examples/prompts" / name).read_text(encoding="utf-8")
            data[name] = "".join(text.splitlines(keepends=True)[:count])
        prompts = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{RUN}-prompts", "namespace": NAMESPACE},
            "data": data,
        }
        self._cluster.apply(*model_volume(layout.models), prompts)

    def install_and_run(self) -> bool:
        """Install, test, run, wait and uninstall; return whether the run succeeded."""
        place = f"--namespace {OPERATOR_NAMESPACE}"
        self.show(f"helm install {RELEASE} {CHART} {place} --create-namespace --wait")
        self.show(f"helm test {RELEASE} {place}")
        self.show(f"kubectl apply -f {MANIFEST}")
        # No longer progressing: done, failed, or held up by something that is missing.
        self.show(
            f"kubectl wait drafterrun/{RUN} --for=condition=Progressing=false --timeout={TIMEOUT}"
        )
        self.show(f"kubectl get drafterrun {RUN}")
        run = self._cluster.drafter_run(RUN) or {}
        conditions = {found["type"]: found for found in run["status"]["conditions"]}
        if conditions["Complete"]["status"] != "True":
            self._console.print(conditions["Progressing"]["message"], style="red", soft_wrap=True)
            self._console.print(conditions["Failed"]["message"], style="red", soft_wrap=True)
            return False
        self.show(f"helm uninstall {RELEASE} {place} --wait")
        self.show("kubectl get drafterruns")
        return True


def main() -> None:
    """Run the demo; exit 0 only if the run succeeded and survived the uninstallation."""
    end_well_on_signals()
    console = Console()
    layout = Layout(REPOSITORY, REPOSITORY / ".quickstart" / "install-demo")
    layout.models.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(layout)
    started = time.monotonic()
    try:
        if cluster.stop():
            console.print("stopped a sandbox that an interrupted demo had left")
        cluster.forget()
        if lacking := preflight.missing_parts(layout.home):
            raise QuickstartError("the demo cannot begin:\n  - " + "\n  - ".join(lacking))
        demo = _Demo(cluster, console)
        try:
            demo.prepare()
            succeeded = demo.install_and_run()
        finally:
            cluster.stop()
    except QuickstartError as error:
        Console(stderr=True).print(f"install demo: {error}", style="red", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    spent = duration(time.monotonic() - started)
    if not succeeded:
        sys.exit(f"install demo: the run did not succeed ({spent})")
    console.print(f"\nDone in {spent}. The run is kept when its operator goes.")


if __name__ == "__main__":
    main()
