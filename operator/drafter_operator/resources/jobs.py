"""The Jobs of a run: prepare, extract, train, export and benchmark."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from drafter_jobs.contract.outcome import METRICS_PORT, TERMINATION_LOG_VARIABLE, ExitCode
from drafter_operator.api.spec import JobPodSettings, Retention
from drafter_operator.resources import names, pods
from drafter_operator.resources.settings import OperatorSettings
from drafter_operator.run import CandidateId, Run

TERMINATION_LOG = "/dev/termination-log"

FINAL_EXIT_CODES = sorted(
    code for code in ExitCode if code not in (ExitCode.SUCCEEDED, ExitCode.INTERRUPTED)
)
"""Exit codes after which the same Pod again would only fail again."""

SAVE_GRACE_SECONDS = 180
"""Time a training gets to save its state after SIGTERM."""


@dataclasses.dataclass(frozen=True)
class _Work:
    """What one job does."""

    step: str
    program: str
    arguments: Sequence[str]
    settings: JobPodSettings
    gpus: int = 0
    candidate: CandidateId | None = None
    grace_seconds: int = 30
    volumes: Sequence[pods.Object] = ()
    mounts: Sequence[pods.Object] = ()
    job: dict[str, Any] = dataclasses.field(default_factory=dict)
    pod: dict[str, Any] = dataclasses.field(default_factory=dict)


def _job(run: Run, work: _Work, attempt: int, suspended: bool, operator: OperatorSettings) -> Any:
    volumes, mounts = pods.volumes(run)
    name = names.job_name(run, work.step, attempt)
    object_labels = pods.labels(run, work.step.split("-")[0].lower(), work.candidate)
    object_labels[names.STEP_LABEL] = work.step
    container = {
        "name": "job",
        "image": work.settings.image,
        "command": [work.program],
        "args": [*work.arguments, "--metrics-address", "0.0.0.0"],
        "env": pods.environment(
            run, work.settings, operator, {TERMINATION_LOG_VARIABLE: TERMINATION_LOG}
        ),
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}],
        "resources": pods.resources(work.settings, work.gpus, operator),
        "securityContext": pods.container_security(),
        "terminationMessagePath": TERMINATION_LOG,
        # The last words of a job that was killed, without a right to read logs.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, *work.mounts],
    }
    spec = pods.pod_spec(
        work.settings,
        operator,
        container,
        [*volumes, *work.volumes],
        restartPolicy="Never",
        terminationGracePeriodSeconds=work.grace_seconds,
        **work.pod,
    )
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": pods.metadata(run, name, object_labels),
        "spec": {
            "suspend": suspended,
            "backoffLimit": operator.job_backoff_limit,
            "ttlSecondsAfterFinished": operator.job_ttl_seconds,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": "job",
                            "operator": "In",
                            "values": [int(code) for code in FINAL_EXIT_CODES],
                        },
                    },
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                ]
            },
            **work.job,
            "template": {"metadata": {"labels": object_labels}, "spec": spec},
        },
    }


def _device(gpus: int) -> list[str]:
    return ["--device", "cuda" if gpus else "cpu"]


def _target(run: Run) -> list[str]:
    target = run.spec.target
    arguments = ["--target", names.target_reference(run)]
    if target.revision is not None:
        arguments += ["--target-revision", target.revision]
    return arguments


def _trust(run: Run) -> list[str]:
    return ["--trust-remote-code"] if run.spec.target.trust_remote_code else []


def _config_map_volume(name: str, config_map: str, mount: str) -> tuple[pods.Object, pods.Object]:
    return (
        {"name": name, "configMap": {"name": config_map}},
        {"name": name, "mountPath": mount, "readOnly": True},
    )


def prepare_job(run: Run, attempt: int, suspended: bool, operator: OperatorSettings) -> Any:
    """Return the Job that makes the training corpus."""
    data = run.spec.data
    prompts: list[str] = []
    volumes, mounts = [], []
    if data.prompts.config_map is not None:
        source = data.prompts.config_map
        prompts = ["--prompts", str(names.PROMPTS_MOUNT / source.key)]
        volume, mount = _config_map_volume("prompts", source.name, str(names.PROMPTS_MOUNT))
        volumes, mounts = [volume], [mount]
    elif data.prompts.path is not None:
        prompts = ["--prompts", str(names.DATA_MOUNT / data.prompts.path)]
    elif data.prompts.dataset is not None:
        dataset = data.prompts.dataset
        prompts = [
            *("--prompts-dataset", dataset.id, "--prompts-split", dataset.split),
            *("--prompts-field", dataset.field),
        ]
    regenerate = (
        "--regenerate-responses" if data.regenerate_responses else ("--no-regenerate-responses")
    )
    arguments = [
        *_target(run),
        *_trust(run),
        *prompts,
        *("--output", str(names.Paths(run).dataset)),
        *("--limit", str(data.limit)),
        regenerate,
        *("--maximum-length", str(data.maximum_length)),
        *("--maximum-new-tokens", str(data.maximum_new_tokens)),
        *("--validation-share", data.validation_share),
        *("--draft-vocabulary-size", str(run.spec.training.draft_vocabulary_size)),
        *("--auxiliary-layers", ",".join(map(str, run.spec.hidden_states.auxiliary_layers))),
        *("--chat-template-arguments", json.dumps(data.chat_template_arguments, sort_keys=True)),
        *_device(data.gpus),
        *("--dtype", str(data.dtype)),
        *("--batch-size", str(data.batch_size)),
        *("--seed", str(run.spec.training.seed)),
    ]
    work = _Work(
        "Prepare",
        "drafter-prepare",
        arguments,
        data.pod,
        data.gpus,
        volumes=volumes,
        mounts=mounts,
    )
    return _job(run, work, attempt, suspended, operator)


def extract_job(run: Run, attempt: int, suspended: bool, operator: OperatorSettings) -> Any:
    """Return the Job that extracts the target's hidden states."""
    states = run.spec.hidden_states
    paths = names.Paths(run)
    arguments = [
        *_target(run),
        *_trust(run),
        *("--dataset", str(paths.dataset)),
        *("--output", str(paths.hidden_states)),
        *("--auxiliary-layers", ",".join(map(str, states.auxiliary_layers))),
        *("--dtype", str(states.dtype)),
        *("--batch-tokens", str(states.batch_tokens)),
        *_device(states.gpus),
    ]
    work = _Work("Extract", "drafter-extract", arguments, states.pod, states.gpus)
    return _job(run, work, attempt, suspended, operator)


def train_job(
    run: Run,
    attempt: int,
    suspended: bool,
    operator: OperatorSettings,
    packed_sequence_length: int,
) -> Any:
    """Return the Job that trains the drafter; an Indexed Job for several nodes.

    Parameters
    ----------
    packed_sequence_length
        Tokens of a packed batch: the spec's, or a shorter one after an out-of-memory.
    """
    training = run.spec.training
    paths = names.Paths(run)
    processes = training.processes_per_node or max(1, training.gpus_per_node)
    arguments = [
        *_target(run),
        *_trust(run),
        *("--dataset", str(paths.dataset)),
        *("--hidden-states", str(paths.hidden_states)),
        *("--output", str(paths.checkpoints)),
        *("--epochs", str(training.epochs)),
        *("--ttt-steps", str(training.ttt_steps)),
        *("--packed-sequence-length", str(packed_sequence_length)),
        *("--learning-rate", training.learning_rate),
        *("--draft-vocabulary-size", str(training.draft_vocabulary_size)),
        *("--optimizer", str(training.optimizer)),
        *("--train-share", str(1 - Decimal(run.spec.data.validation_share))),
        *("--nodes", str(training.nodes)),
        *("--processes-per-node", str(processes)),
        *_device(training.gpus_per_node),
        *("--minimum-first-step-accuracy", training.minimum_first_step_accuracy),
        *("--seed", str(training.seed)),
    ]
    job: dict[str, Any] = {}
    pod: dict[str, Any] = {}
    if training.nodes > 1:
        service = names.train_service_name(run)
        host = f"{names.job_name(run, 'Train', attempt)}-0.{service}"
        arguments += ["--rendezvous", f"{host}:{names.RENDEZVOUS_PORT}"]
        job = {
            "completionMode": "Indexed",
            "completions": training.nodes,
            "parallelism": training.nodes,
        }
        pod = {"subdomain": service}
    work = _Work(
        "Train",
        "drafter-train",
        arguments,
        training.pod,
        training.gpus_per_node,
        grace_seconds=SAVE_GRACE_SECONDS,
        volumes=[{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        mounts=[{"name": "shm", "mountPath": "/dev/shm"}],
        job=job,
        pod=pod,
    )
    return _job(run, work, attempt, suspended, operator)


def train_service(run: Run) -> pods.Object | None:
    """Return the headless Service of a training on several nodes, else None."""
    if run.spec.training.nodes == 1:
        return None
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": pods.metadata(run, names.train_service_name(run), pods.labels(run, "train")),
        "spec": {
            "clusterIP": "None",
            # The processes meet before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": {names.RUN_LABEL: run.name, names.STEP_LABEL: "Train"},
            "ports": [
                {"name": "rendezvous", "port": names.RENDEZVOUS_PORT, "protocol": "TCP"},
            ],
        },
    }


def export_job(run: Run, attempt: int, suspended: bool, operator: OperatorSettings) -> Any:
    """Return the Job that puts the drafter into SGLang's layout and checks it."""
    paths = names.Paths(run)
    arguments = [
        str(paths.checkpoints),
        str(paths.drafter),
        *_target(run),
        *("--extract-record", str(paths.extract_record)),
        *("--dtype", str(run.spec.serving.dtype)),
    ]
    if run.spec.hidden_states.retention is Retention.DELETE_AFTER_TRAINING:
        arguments += ["--delete-hidden-states", str(paths.hidden_states)]
    work = _Work("Export", "drafter-export", arguments, run.spec.export)
    return _job(run, work, attempt, suspended, operator)


def benchmark_job(
    run: Run, candidate: CandidateId, attempt: int, suspended: bool, operator: OperatorSettings
) -> Any:
    """Return the Job that puts a candidate under the run's load."""
    benchmark = run.spec.benchmark
    paths = names.Paths(run)
    prompts = str(paths.dataset / "held_out.jsonl")
    volumes, mounts = [], []
    if benchmark.prompts is not None and benchmark.prompts.config_map is not None:
        source = benchmark.prompts.config_map
        prompts = str(names.BENCHMARK_PROMPTS_MOUNT / source.key)
        volume, mount = _config_map_volume(
            "benchmark-prompts", source.name, str(names.BENCHMARK_PROMPTS_MOUNT)
        )
        volumes, mounts = [volume], [mount]
    elif benchmark.prompts is not None:
        prompts = str(names.DATA_MOUNT / str(benchmark.prompts.path))
    arguments = [
        *("--url", f"http://{names.server_name(run, candidate)}:{names.SERVER_PORT}"),
        *("--candidate", candidate.name),
        *("--depth", str(candidate.depth)),
        *("--prompts", prompts),
        *("--dataset", str(paths.dataset)),
        *_target(run),
        *_trust(run),
        *("--output", str(paths.benchmark(candidate))),
        *("--concurrencies", ",".join(map(str, benchmark.concurrencies))),
        *("--requests", str(benchmark.requests)),
        *("--maximum-new-tokens", str(benchmark.maximum_new_tokens)),
        *("--warm-up-requests", str(benchmark.warm_up_requests)),
    ]
    if candidate.depth and run.spec.serving.baseline:
        arguments += ["--baseline", str(paths.benchmark(CandidateId(0)))]
    work = _Work(
        f"Benchmark-{candidate.name}",
        "drafter-benchmark",
        arguments,
        benchmark.pod,
        candidate=candidate,
        volumes=volumes,
        mounts=mounts,
    )
    return _job(run, work, attempt, suspended, operator)
