"""What becomes of a step that is a Job: started, running, done, tried again or failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pydantic

from drafter_jobs.contract.outcome import ExitCode
from drafter_operator.api.status import Step, StepState, TrainingStatus
from drafter_operator.lifecycle.ledger import TRAIN, Ledger, Patch, Transition
from drafter_operator.lifecycle.observed import JobState, Observed
from drafter_operator.lifecycle.progress import live_training, progress_of
from drafter_operator.resources import names

MAXIMUM_ATTEMPTS = 9
"""Bounds every automatic retry; the digit in a Job's name stays one digit."""

Builder = Callable[[int, bool], dict[str, Any]]
"""Makes the step's Job from the attempt and whether it is suspended."""

Recorder = Callable[[Ledger, dict[str, Any]], str]
"""Keeps a job's result in the status and returns a sentence about it."""


def advance_job(
    ledger: Ledger, observed: Observed, step_name: str, build: Builder, record: Recorder
) -> bool:
    """Bring a step that is a Job forward.

    Returns
    -------
    bool
        Whether the step is done and the next one may begin.
    """
    if ledger.is_final(step_name):
        return ledger.is_done(step_name)
    step = ledger.steps[step_name]
    suspended = ledger.run.spec.suspend
    job = observed.jobs.get(names.job_name(ledger.run, step_name, step.attempt))
    if job is None:
        if not suspended:
            ledger.desired.append(build(step.attempt, False))
            ledger.move(step_name, StepState.RUNNING, "JobCreated", "the Job was created")
        return False
    if job.complete:
        return _completed(ledger, step, job, record)
    if job.failed:
        _failed(ledger, step, job)
        return False
    if job.suspended != suspended:
        ledger.patches.append(Patch("Job", job.name, {"spec": {"suspend": suspended}}))
    if suspended:
        ledger.note(step_name, reason="Suspended", message="suspended", progress=None)
    else:
        _running(ledger, step, job)
    return False


def _completed(ledger: Ledger, step: Step, job: JobState, record: Recorder) -> bool:
    pod = job.result_pod
    if pod is None or pod.termination is None or pod.termination.result is None:
        if step.attempt >= MAXIMUM_ATTEMPTS:
            ledger.move(
                step.name,
                StepState.FAILED,
                "ResultLost",
                f"the Job {job.name} is complete, but no Pod is left to tell its result",
            )
            return False
        # Finished work is found and skipped by the job, so that another attempt is short.
        _try_again(ledger, step, "ResultLost", f"the result of {job.name} was lost")
        return False
    if step.started_at is None:
        ledger.move(step.name, StepState.RUNNING, "JobCreated")
    try:
        sentence = record(ledger, pod.termination.result)
    except pydantic.ValidationError as error:
        fault = error.errors()[0]
        ledger.move(
            step.name,
            StepState.FAILED,
            "ResultInvalid",
            f"the result of {job.name} is not what this operator reads:"
            f" {'.'.join(map(str, fault['loc']))}: {fault['msg']}; use the image of the jobs that"
            " belongs to the operator's version",
        )
        return False
    ledger.move(step.name, StepState.SUCCEEDED, "Succeeded", sentence)
    return True


def _try_again(ledger: Ledger, step: Step, reason: str, message: str) -> None:
    ledger.note(step.name, attempt=step.attempt + 1, reason=reason, message=message, progress=None)
    ledger.transitions.append(Transition(f"{step.name.split('-')[0]}Retried", message, True))


def _failed(ledger: Ledger, step: Step, job: JobState) -> None:
    pod = job.last_ended
    code = pod.exit_code if pod else None
    if step.name == TRAIN and code == ExitCode.OUT_OF_GPU_MEMORY and _shorten(ledger, step):
        return
    reason, message = failure_of(job)
    ledger.move(step.name, StepState.FAILED, reason, message)


def _shorten(ledger: Ledger, step: Step) -> bool:
    """Answer an out-of-memory with a shorter packed length; False at the stated minimum."""
    training = ledger.run.spec.training
    length = packed_sequence_length(ledger)
    shorter = max(length // 2, training.minimum_packed_sequence_length)
    if shorter >= length or step.attempt >= MAXIMUM_ATTEMPTS:
        return False
    status = ledger.status.training or TrainingStatus()
    ledger.set(training=status.model_copy(update={"packed_sequence_length": shorter}))
    _try_again(
        ledger,
        step,
        "OutOfGpuMemory",
        f"out of GPU memory with batches packed to {length} tokens: going on from the last"
        f" checkpoint with {shorter}",
    )
    return True


def packed_sequence_length(ledger: Ledger) -> int:
    """Return the packed length in use: the spec's, or a shorter one after an out-of-memory."""
    recorded = ledger.status.training.packed_sequence_length if ledger.status.training else None
    return recorded or ledger.run.spec.training.packed_sequence_length


def failure_of(job: JobState) -> tuple[str, str]:
    """Return the reason and the message of a failed Job.

    The job's own words come first; without them, the exit code and the last lines of its log.
    """
    pod = job.last_ended
    if pod is None:
        return "JobFailed", f"the Job {job.name} failed: {job.failure or 'no Pod is left'}"
    if pod.termination is not None and pod.termination.outcome == "Failed":
        return str(pod.termination.reason), pod.termination.message
    words = f"; its last words: {pod.last_words}" if pod.last_words else ""
    if pod.ended_reason == "OOMKilled":
        return (
            "OOMKilled",
            f"the Pod {pod.name} used more memory than its limit and was killed; raise"
            f" resources.limits.memory of this step's pod{words}",
        )
    killed = " (killed with SIGKILL)" if pod.exit_code == 137 else ""
    return (
        "PodFailed",
        f"the Pod {pod.name} ended with exit code {pod.exit_code}{killed}{words}",
    )


def _running(ledger: Ledger, step: Step, job: JobState) -> None:
    if step.state is not StepState.RUNNING:
        ledger.move(step.name, StepState.RUNNING, "JobRunning", "the Job runs")
    pod = job.newest_pod
    if pod is None or pod.phase == "Pending":
        waiting = pod.waiting if pod else None
        message = waiting or "waits for its Pod"
        ledger.note(step.name, reason="PodPending", message=message, progress=None)
        return
    changes: dict[str, Any] = {"reason": "PodRunning", "message": "the Pod runs"}
    ended = job.last_ended
    if ended is not None and ended.exit_code not in (0, None):
        reason, message = failure_of(job)
        changes["message"] = f"starts again after {reason}: {message}"
    if (progress := progress_of(pod.samples, step, ledger.now)) is not None:
        changes["progress"] = progress
    if step.name == TRAIN:
        status = ledger.status.training or TrainingStatus()
        ledger.set(training=live_training(pod.samples, status))
    ledger.note(step.name, **changes)
