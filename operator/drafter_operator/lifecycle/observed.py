"""What a pass sees of the cluster, without any Kubernetes client in it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime

from drafter_jobs.contract.outcome import TerminationMessage


@dataclasses.dataclass(frozen=True)
class Sample:
    """One Prometheus sample of a Pod."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclasses.dataclass(frozen=True)
class PodState:
    """One Pod of a Job or a Deployment.

    Attributes
    ----------
    started_at
        When a node took it on; None while it waits for one.
    waiting
        Why it does not run yet: the scheduler's, the kubelet's or the image puller's words.
    exit_code
        Of the container that ended last, if one did.
    ended_reason
        The kubelet's word for that end, such as OOMKilled.
    termination
        What the job said when it ended, if it could be read.
    last_words
        Last lines of the log, or the kubelet's message, of the container that ended.
    """

    name: str
    phase: str
    created_at: datetime
    started_at: datetime | None = None
    ready: bool = False
    restarts: int = 0
    waiting: str | None = None
    exit_code: int | None = None
    ended_reason: str | None = None
    termination: TerminationMessage | None = None
    last_words: str = ""
    samples: Sequence[Sample] = ()

    @property
    def is_gone(self) -> bool:
        """Whether it holds no resources any more."""
        return self.phase in ("Succeeded", "Failed")


@dataclasses.dataclass(frozen=True)
class JobState:
    """One Job."""

    name: str
    suspended: bool = False
    complete: bool = False
    failed: bool = False
    failure: str = ""
    pods: Sequence[PodState] = ()

    @property
    def newest_pod(self) -> PodState | None:
        """The Pod made last, if there is one."""
        return max(self.pods, key=lambda pod: pod.created_at, default=None)

    @property
    def last_ended(self) -> PodState | None:
        """The Pod made last of those that ended."""
        ended = [pod for pod in self.pods if pod.exit_code is not None]
        return max(ended, key=lambda pod: pod.created_at, default=None)

    @property
    def result_pod(self) -> PodState | None:
        """The Pod that succeeded and said what came of it."""
        return next(
            (
                pod
                for pod in self.pods
                if pod.phase == "Succeeded" and pod.termination and pod.termination.result
            ),
            None,
        )


@dataclasses.dataclass(frozen=True)
class ServerState:
    """One Deployment of a candidate."""

    name: str
    replicas: int
    ready: bool = False
    pods: Sequence[PodState] = ()

    @property
    def newest_pod(self) -> PodState | None:
        """The Pod made last, if there is one."""
        return max(self.pods, key=lambda pod: pod.created_at, default=None)

    @property
    def is_stopped(self) -> bool:
        """Whether none of its Pods holds resources."""
        return self.replicas == 0 and all(pod.is_gone for pod in self.pods)


@dataclasses.dataclass(frozen=True)
class MissingReference:
    """Something the spec names and the cluster lacks."""

    reason: str
    message: str


@dataclasses.dataclass(frozen=True)
class Observed:
    """Children of a run, by name, and what it refers to."""

    jobs: Mapping[str, JobState] = dataclasses.field(default_factory=dict)
    servers: Mapping[str, ServerState] = dataclasses.field(default_factory=dict)
    missing: Sequence[MissingReference] = ()
