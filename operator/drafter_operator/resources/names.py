"""How child objects and directories are named."""

from __future__ import annotations

from pathlib import PurePosixPath

from drafter_operator.run import CandidateId, Run

DATA_MOUNT = PurePosixPath("/data")
MODEL_MOUNT = PurePosixPath("/models")
PROMPTS_MOUNT = PurePosixPath("/prompts")
BENCHMARK_PROMPTS_MOUNT = PurePosixPath("/benchmark-prompts")
HUB_CACHE = DATA_MOUNT / "huggingface"

SERVER_PORT = 30000
RENDEZVOUS_PORT = 29500

RUN_LABEL = "drafters.dev/run"
STEP_LABEL = "drafters.dev/step"
CANDIDATE_LABEL = "drafters.dev/candidate"
DEPTH_LABEL = "drafters.dev/depth"
COMPONENT_LABEL = "app.kubernetes.io/component"


def job_name(run: Run, step: str, attempt: int) -> str:
    """Return the name of a step's Job, such as ``kimi-train-1``."""
    return f"{run.name}-{step.lower()}-{attempt}"


def server_name(run: Run, candidate: CandidateId) -> str:
    """Return the name of a candidate's Deployment and Service, such as ``kimi-depth-16``."""
    return f"{run.name}-{candidate.name}"


def stable_service_name(run: Run) -> str:
    """Return the name of the Service that points to the promoted candidate."""
    return run.name


def train_service_name(run: Run) -> str:
    """Return the name of the headless Service of a training on several nodes."""
    return f"{run.name}-train"


def claim_name(run: Run) -> str:
    """Return the name of the claim that holds the run's files."""
    return run.spec.storage.claim_name or run.name


class Paths:
    """Where a run's files lie, as its containers see them."""

    def __init__(self, run: Run) -> None:
        root = DATA_MOUNT / run.work_directory
        self.dataset = root / "dataset"
        self.hidden_states = root / "hidden-states"
        self.extract_record = self.hidden_states / "extract.json"
        self.checkpoints = root / "checkpoints"
        self.drafter = root / "drafter"
        self._benchmark = root / "benchmark"

    def benchmark(self, candidate: CandidateId) -> PurePosixPath:
        """Return the file with a candidate's benchmark."""
        return self._benchmark / f"{candidate.name}.json"


def target_reference(run: Run) -> str:
    """Return the target as a path inside a container, or as its hub id."""
    target = run.spec.target
    if target.path is None:
        return str(target.hub_id)
    return str((MODEL_MOUNT if target.claim_name else DATA_MOUNT) / target.path)
