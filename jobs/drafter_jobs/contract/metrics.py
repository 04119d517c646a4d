"""Names, labels and meanings of the metrics that jobs export; the one source of docs/metrics.md.

Names follow Prometheus: base units, ``_total`` for counters, no label without a bound.
"""

from __future__ import annotations

import dataclasses
import enum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Kind(enum.StrEnum):
    """Type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes
    ----------
    name
        As it is exported.
    meaning
        What a value says, with its bounds.
    labels
        Labels that the program itself sets.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()

    def counter(self, registry: CollectorRegistry) -> Counter:
        """Return the counter, registered."""
        return Counter(self.name, self.meaning, self.labels, registry=registry)

    def gauge(self, registry: CollectorRegistry) -> Gauge:
        """Return the gauge, registered."""
        return Gauge(self.name, self.meaning, self.labels, registry=registry)

    def histogram(self, registry: CollectorRegistry) -> Histogram:
        """Return the histogram, registered."""
        return Histogram(self.name, self.meaning, self.labels, registry=registry)


WORK_DONE = Metric("drafter_job_work_done", Kind.GAUGE, "Units of work done.", ("unit",))
WORK_EXPECTED = Metric("drafter_job_work_expected", Kind.GAUGE, "Units of work in all.", ("unit",))
VOLUME_AVAILABLE = Metric(
    "drafter_job_volume_available_bytes",
    Kind.GAUGE,
    "Bytes the job may still write to the volume of its output.",
)
VOLUME_SIZE = Metric(
    "drafter_job_volume_size_bytes", Kind.GAUGE, "Size of the volume of the job's output."
)
PREPARE_SAMPLES = Metric(
    "drafter_prepare_samples_total",
    Kind.COUNTER,
    "Samples by what became of them: written, skipped or failed.",
    ("result",),
)
PREPARE_TOKENS = Metric("drafter_prepare_tokens_total", Kind.COUNTER, "Response tokens written.")
EXTRACT_SAMPLES = Metric(
    "drafter_extract_samples_total",
    Kind.COUNTER,
    "Samples by what became of them: written, skipped or failed.",
    ("result",),
)
EXTRACT_TOKENS = Metric(
    "drafter_extract_tokens_total", Kind.COUNTER, "Tokens whose hidden states were written."
)
EXTRACT_BYTES = Metric(
    "drafter_extract_bytes_total", Kind.COUNTER, "Bytes of hidden states written."
)
TRAINING_EPOCH = Metric("drafter_training_epoch", Kind.GAUGE, "Present epoch, from 0.")
TRAINING_EPOCHS = Metric("drafter_training_epochs", Kind.GAUGE, "Epochs in all.")
TRAINING_STEP = Metric("drafter_training_step", Kind.GAUGE, "Optimizer steps done.")
TRAINING_STEPS = Metric("drafter_training_steps", Kind.GAUGE, "Optimizer steps in all.")
TRAINING_LOSS = Metric("drafter_training_loss", Kind.GAUGE, "Loss of the last step.")
TRAINING_STEP_LOSS = Metric(
    "drafter_training_ttt_step_loss",
    Kind.GAUGE,
    "Loss at a TTT step, in training or in the last validation.",
    ("ttt_step", "split"),
)
TRAINING_ACCURACY = Metric(
    "drafter_training_accuracy_ratio",
    Kind.GAUGE,
    "Share of right tokens at a TTT step; full: right at every earlier step too, conditional:"
    " given that those were right.",
    ("ttt_step", "kind", "split"),
)
TRAINING_ESTIMATE = Metric(
    "drafter_training_estimated_acceptance_length",
    Kind.GAUGE,
    "1 + the sum of the last validation's full accuracies, in tokens for each verify call.",
)
TRAINING_RATE = Metric("drafter_training_learning_rate", Kind.GAUGE, "Learning rate.")
TRAINING_TOKENS = Metric("drafter_training_tokens_total", Kind.COUNTER, "Tokens trained on.")
CHECKPOINT_TIME = Metric(
    "drafter_training_checkpoint_timestamp_seconds",
    Kind.GAUGE,
    "Unix time of the last complete checkpoint.",
)
CHECKPOINT_SIZE = Metric(
    "drafter_training_checkpoint_size_bytes", Kind.GAUGE, "Size of the last complete checkpoint."
)
GPU_MEMORY_USED = Metric(
    "drafter_gpu_memory_used_bytes", Kind.GAUGE, "Memory in use of a GPU of the Pod.", ("gpu",)
)
GPU_MEMORY_SIZE = Metric(
    "drafter_gpu_memory_size_bytes", Kind.GAUGE, "Memory of a GPU of the Pod.", ("gpu",)
)
GPU_UTILIZATION = Metric(
    "drafter_gpu_utilization_ratio",
    Kind.GAUGE,
    "Share of the last sample period in which a kernel ran on a GPU of the Pod.",
    ("gpu",),
)
BENCHMARK_REQUESTS = Metric(
    "drafter_benchmark_requests_total",
    Kind.COUNTER,
    "Requests finished: completed or failed.",
    ("result",),
)

JOB_METRICS: dict[str, tuple[Metric, ...]] = {
    "every job": (WORK_DONE, WORK_EXPECTED, VOLUME_AVAILABLE, VOLUME_SIZE),
    "drafter-prepare": (PREPARE_SAMPLES, PREPARE_TOKENS),
    "drafter-extract": (EXTRACT_SAMPLES, EXTRACT_TOKENS, EXTRACT_BYTES),
    "drafter-train": (
        TRAINING_EPOCH,
        TRAINING_EPOCHS,
        TRAINING_STEP,
        TRAINING_STEPS,
        TRAINING_LOSS,
        TRAINING_STEP_LOSS,
        TRAINING_ACCURACY,
        TRAINING_ESTIMATE,
        TRAINING_RATE,
        TRAINING_TOKENS,
        CHECKPOINT_TIME,
        CHECKPOINT_SIZE,
    ),
    "prepare, extract and train on a GPU": (GPU_MEMORY_USED, GPU_MEMORY_SIZE, GPU_UTILIZATION),
    "drafter-benchmark": (BENCHMARK_REQUESTS,),
}
"""Metrics of jobs by who exports them."""
