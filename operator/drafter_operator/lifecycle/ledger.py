"""The to-do list of one pass: steps as recorded, and what this pass changes."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

from drafter_operator.api.status import (
    Candidate,
    DrafterRunStatus,
    Step,
    StepState,
)
from drafter_operator.run import CandidateId, Run

PREPARE, EXTRACT, TRAIN, EXPORT, SELECT, PROMOTE = (
    "Prepare",
    "Extract",
    "Train",
    "Export",
    "Select",
    "Promote",
)
FINAL = (StepState.SUCCEEDED, StepState.FAILED, StepState.SKIPPED)
DONE = (StepState.SUCCEEDED, StepState.SKIPPED)
MESSAGE_LIMIT = 1000


def serve_step(candidate: CandidateId) -> str:
    """Return the name of the step that starts a candidate's server."""
    return f"Serve-{candidate.name}"


def benchmark_step(candidate: CandidateId) -> str:
    """Return the name of the step that measures a candidate."""
    return f"Benchmark-{candidate.name}"


def step_names(run: Run) -> list[str]:
    """Return the steps of a run, in order."""
    measured = [
        step(candidate) for candidate in run.candidates for step in (serve_step, benchmark_step)
    ]
    return [PREPARE, EXTRACT, TRAIN, EXPORT, *measured, SELECT, PROMOTE]


def timestamp(time: datetime) -> str:
    """Return an RFC 3339 time in UTC, to the second."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclasses.dataclass(frozen=True)
class Transition:
    """Something worth an Event."""

    reason: str
    message: str
    warning: bool = False


@dataclasses.dataclass(frozen=True)
class Patch:
    """A merge patch of an existing child."""

    kind: str
    name: str
    body: dict[str, Any]


class Ledger:
    """What a pass has found and wants; everything starts from the recorded status."""

    def __init__(self, run: Run, now: datetime) -> None:
        self.run = run
        self.now = now
        recorded = {step.name: step for step in run.status.steps}
        self.steps = {name: recorded.get(name, Step(name=name)) for name in step_names(run)}
        known = {candidate.name: candidate for candidate in run.status.candidates}
        self.candidates = {
            candidate.name: known.get(
                candidate.name, Candidate(name=candidate.name, depth=candidate.depth)
            )
            for candidate in run.candidates
        }
        self.status: DrafterRunStatus = run.status
        self.desired: list[dict[str, Any]] = []
        self.patches: list[Patch] = []
        self.transitions: list[Transition] = []

    def is_done(self, name: str) -> bool:
        """Whether a step needs nothing more."""
        return self.steps[name].state in DONE

    def is_final(self, name: str) -> bool:
        """Whether a step has ended, well or not."""
        return self.steps[name].state in FINAL

    def note(self, name: str, **changes: Any) -> None:
        """Change fields of a step without changing its state."""
        step = self.steps[name]
        if changes.get("message"):
            changes["message"] = str(changes["message"])[:MESSAGE_LIMIT]
        self.steps[name] = step.model_copy(update=changes)

    def move(self, name: str, state: StepState, reason: str, message: str = "") -> None:
        """Bring a step into a state, with the times and the transition that go with it."""
        step = self.steps[name]
        message = message[:MESSAGE_LIMIT]
        changes: dict[str, Any] = {"state": state, "reason": reason, "message": message or None}
        if state is StepState.RUNNING and step.state is not StepState.RUNNING:
            changes |= {"started_at": timestamp(self.now), "finished_at": None}
        if state in FINAL:
            changes["finished_at"] = timestamp(self.now)
            changes["progress"] = None
        if state is StepState.PENDING:
            changes |= {"started_at": None, "finished_at": None, "progress": None}
        self.steps[name] = step.model_copy(update=changes)
        if state is not step.state:
            self.transitions.append(
                Transition(
                    f"{name.split('-')[0]}{state}",
                    f"{name}: {message or state}",
                    warning=state is StepState.FAILED,
                )
            )

    def change_candidate(self, candidate: CandidateId, **changes: Any) -> None:
        """Change fields of a candidate."""
        self.candidates[candidate.name] = self.candidates[candidate.name].model_copy(update=changes)

    def set(self, **changes: Any) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=changes)
