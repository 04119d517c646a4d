"""A DrafterRun as the operator holds it: identity, spec and last written status."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from drafter_operator.api.spec import BASELINE, DrafterRunSpec
from drafter_operator.api.status import DrafterRunStatus


@dataclasses.dataclass(frozen=True)
class CandidateId:
    """A candidate: the baseline or a draft depth.

    Attributes
    ----------
    depth
        Draft tokens (SGLang's ``--speculative-num-draft-tokens``); 0 for the baseline.
    """

    depth: int

    @property
    def name(self) -> str:
        """Name in status, labels and child names: ``baseline`` or ``depth-N``."""
        return f"depth-{self.depth}" if self.depth else BASELINE


@dataclasses.dataclass(frozen=True)
class Run:
    """One DrafterRun."""

    name: str
    namespace: str
    uid: str
    generation: int
    annotations: Mapping[str, str]
    spec: DrafterRunSpec
    status: DrafterRunStatus

    @classmethod
    def from_object(cls, body: Mapping[str, Any]) -> Run:
        """Parse a DrafterRun as the API server returns it.

        Parameters
        ----------
        body
            The object, with ``metadata``, ``spec`` and perhaps ``status``.

        Raises
        ------
        pydantic.ValidationError
            The spec does not follow the API; only possible with a CRD of another version.
        """
        metadata = body["metadata"]
        return cls(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 1),
            annotations=metadata.get("annotations") or {},
            spec=DrafterRunSpec.model_validate(body["spec"]),
            status=DrafterRunStatus.model_validate(body.get("status") or {}),
        )

    @property
    def candidates(self) -> tuple[CandidateId, ...]:
        """Candidates in the order they are served: the baseline first, then as the spec lists."""
        depths = tuple(CandidateId(depth) for depth in self.spec.serving.depths)
        return ((CandidateId(0),) if self.spec.serving.baseline else ()) + depths

    @property
    def work_directory(self) -> str:
        """Directory of the run inside its volume; the uid keeps runs of one name apart."""
        return f"{self.name}-{self.uid[:8]}"
