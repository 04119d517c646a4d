"""A cluster without any Kubernetes in it, on which the decisions of the operator are played."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from drafter_jobs.contract.outcome import Reason, TerminationMessage
from drafter_operator.api.status import Condition, DrafterRunStatus, Step
from drafter_operator.lifecycle.decide import Decision, decide
from drafter_operator.lifecycle.observed import (
    JobState,
    MissingReference,
    Observed,
    PodState,
    Sample,
    ServerState,
)
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import Run

RESULTS: dict[str, dict[str, Any]] = {
    "prepare": {
        "input": 40,
        "written": 38,
        "skipped": 1,
        "failed": 1,
        "tokens": 4000,
        "responseTokens": 3000,
        "heldOut": 4,
        "draftVocabularySize": 64,
        "vocabularyCoverage": "0.98",
    },
    "extract": {
        "input": 38,
        "written": 38,
        "skipped": 0,
        "failed": 0,
        "tokens": 4000,
        "bytes": 1_000_000,
        "auxiliaryLayers": [2, 4, 5],
    },
    "train": {
        "epochs": 2,
        "steps": 20,
        "bestEpoch": 1,
        "loss": "1.5",
        "fullAccuracy": ["0.6", "0.3"],
        "estimatedAcceptanceLength": "1.9",
        "checkpoint": "/data/x/1",
    },
    "export": {
        "architecture": "LlamaForCausalLMEagle3",
        "tensors": 14,
        "renamed": 10,
        "dropped": ["t2d"],
        "added": [],
        "auxiliaryLayers": [1, 3, 4],
        "parameters": 1000,
        "sha256": "0" * 64,
    },
}
THROUGHPUT = {"baseline": "100", "depth-2": "110", "depth-4": "150", "depth-8": "130"}
ACCEPTANCE = {"depth-2": "1.4", "depth-4": "1.9", "depth-8": "2.1"}

SPEC: dict[str, Any] = {
    "target": {"path": "model", "claimName": "models"},
    "storage": {"claimTemplate": {"size": "1Gi"}},
    "data": {"prompts": {"configMap": {"name": "prompts", "key": "p.jsonl"}}},
    "serving": {"depths": [2, 4, 8]},
    "benchmark": {"concurrencies": [1, 2]},
}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the changed fields of its sections."""
    result = dict(base)
    for name, value in changes.items():
        known = result.get(name)
        both = isinstance(known, Mapping) and isinstance(value, Mapping)
        result[name] = merged(known, value) if both else value
    return result


def benchmark_result(candidate: str, **changes: Any) -> dict[str, Any]:
    """Return what a benchmark says of a candidate."""
    loads = [
        {
            "concurrency": concurrency,
            "requested": 4,
            "completed": 4,
            "outputTokensPerSecond": THROUGHPUT[candidate],
            "ttftMillisecondsP50": "10",
            "ttftMillisecondsP95": "20",
            "itlMillisecondsP50": "5",
            "itlMillisecondsP95": "6",
        }
        for concurrency in (1, 2)
    ]
    depth = int(candidate.partition("-")[2] or 0)
    result: dict[str, Any] = {"candidate": candidate, "depth": depth, "loads": loads}
    if depth:
        result |= {"acceptanceLength": ACCEPTANCE[candidate], "acceptanceRate": "0.3"}
        result |= {"outputsCompared": 8, "outputsEqual": 8}
    return result | changes


class World:
    """Holds a run, its children and the time; a pass reads all of it and changes it.

    The status goes through JSON on its way from pass to pass, as through the API server, so that
    each pass is that of an operator that has just started.
    """

    def __init__(self, **spec: Any) -> None:
        self.spec = merged(SPEC, spec)
        self.annotations: dict[str, str] = {}
        self.status = DrafterRunStatus()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.jobs: dict[str, JobState] = {}
        self.servers: dict[str, ServerState] = {}
        self.services: dict[str, str] = {}
        self.missing: tuple[MissingReference, ...] = ()
        self.job_arguments: dict[str, list[str]] = {}
        self.history: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.last_decision: Decision | None = None

    # What the cluster does.

    def run(self) -> Run:
        return Run.from_object(
            {
                "metadata": {
                    "name": "r",
                    "namespace": "n",
                    "uid": "01234567-89ab",
                    "generation": 1,
                    "annotations": self.annotations,
                },
                "spec": self.spec,
                "status": self.status.to_api(),
            }
        )

    def observed(self) -> Observed:
        return Observed(dict(self.jobs), dict(self.servers), self.missing)

    def advance(self, seconds: float = 1) -> Decision:
        """Do one pass and carry out what it decided."""
        self.now += timedelta(seconds=seconds)
        decision = decide(self.run(), self.observed(), self.now, OperatorSettings())
        self.last_decision = decision
        self.status = decision.status
        self.events += [(found.reason, found.message) for found in decision.transitions]
        for body in decision.desired:
            self._apply(body)
        for patch in decision.patches:
            self._patch(patch.kind, patch.name, patch.body["spec"])
        return decision

    def settle(self) -> None:
        """Do passes until one wants nothing new; the cluster stands still meanwhile."""
        for _ in range(12):
            before = self.status, dict(self.jobs), dict(self.servers), dict(self.services)
            decision = self.advance(0)
            if before == (self.status, self.jobs, self.servers, self.services):
                assert not decision.transitions
                assert not decision.patches
                return
        raise AssertionError(f"twelve passes over one cluster each changed it: {self.events[-8:]}")

    def _apply(self, body: Mapping[str, Any]) -> None:
        name = body["metadata"]["name"]
        if body["kind"] == "Job" and name not in self.jobs:
            self.jobs[name] = JobState(name, pods=(PodState(f"{name}-a", "Running", self.now),))
            self.job_arguments[name] = body["spec"]["template"]["spec"]["containers"][0]["args"]
            self.history.append(name)
        elif body["kind"] == "Deployment":
            known = self.servers.get(name)
            if known is None or known.replicas != body["spec"]["replicas"]:
                self.servers[name] = self._starting(name)
                self.history.append(name)
        elif body["kind"] == "Service":
            self.services[name] = body["spec"]["selector"].get("drafters.dev/candidate", "")

    def _starting(self, name: str) -> ServerState:
        pod = PodState(f"{name}-a", "Running", self.now, started_at=self.now)
        return ServerState(name, 1, pods=(pod,))

    def _patch(self, kind: str, name: str, spec: Mapping[str, Any]) -> None:
        if kind == "Job":
            self.jobs[name] = dataclasses.replace(self.jobs[name], suspended=spec["suspend"])
        else:
            # The Pod is there until the next ``server_gone``.
            changes = {"replicas": spec["replicas"], "ready": False}
            self.servers[name] = dataclasses.replace(self.servers[name], **changes)

    def replace_pod(self, name: str, **changes: Any) -> None:
        """Change the only Pod of a Job or server."""
        for children in (self.jobs, self.servers):
            if name in children:
                pod = dataclasses.replace(children[name].pods[0], **changes)
                children[name] = dataclasses.replace(children[name], pods=(pod,))

    def succeed(self, name: str, result: dict[str, Any]) -> None:
        message = TerminationMessage(
            outcome="Succeeded", reason=Reason.SUCCEEDED, message="done", result=result
        )
        self.replace_pod(name, phase="Succeeded", exit_code=0, termination=message)
        self.jobs[name] = dataclasses.replace(self.jobs[name], complete=True)

    def fail(self, name: str, code: int, reason: Reason | None = None, message: str = "") -> None:
        said = None
        if reason is not None:
            said = TerminationMessage(outcome="Failed", reason=reason, message=message)
        self.replace_pod(name, phase="Failed", exit_code=code, termination=said)
        self.jobs[name] = dataclasses.replace(
            self.jobs[name], failed=True, failure="Pod failed with a final exit code"
        )

    def become_ready(self, name: str) -> None:
        self.servers[name] = dataclasses.replace(self.servers[name], ready=True)

    def finish_something(self) -> bool:
        """Let the cluster do its next bit of work; False if there is none left."""
        for name, server in self.servers.items():
            if server.replicas == 0 and server.pods:
                self.servers[name] = dataclasses.replace(server, pods=())
                return True
            if server.replicas and not server.ready:
                self.become_ready(name)
                return True
        for name, job in self.jobs.items():
            if not (job.complete or job.failed or job.suspended):
                self.succeed(name, self.result_of(name))
                return True
        return False

    def result_of(self, job_name: str) -> dict[str, Any]:
        step = job_name.removeprefix("r-").rpartition("-")[0]
        if step.startswith("benchmark-"):
            return benchmark_result(step.removeprefix("benchmark-"))
        return RESULTS[step]

    def play(self, until: str = "") -> None:
        """Go on until a child of a name exists, or until nothing is left to do."""
        for _ in range(200):
            self.settle()
            if until and until in self.history:
                return
            if not self.finish_something():
                assert not until, f"{until} never came: {self.history}"
                return
        raise AssertionError(f"the run never ends: {self.history}")

    # What a test looks at.

    def step(self, name: str) -> Step:
        return next(step for step in self.status.steps if step.name == name)

    def states(self) -> dict[str, str]:
        return {step.name: step.state.value for step in self.status.steps}

    def condition(self, kind: str) -> Condition:
        return next(found for found in self.status.conditions if found.type == kind)

    def metric(self, job: str, *samples: tuple[str, Mapping[str, str], float]) -> None:
        self.replace_pod(job, samples=tuple(Sample(*sample) for sample in samples))

    def up(self) -> set[str]:
        return {name for name, server in self.servers.items() if server.replicas}
