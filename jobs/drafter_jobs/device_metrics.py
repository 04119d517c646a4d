"""Metrics read when asked for: room on the output's volume, and the Pod's GPUs through NVML."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from drafter_jobs.contract import metrics
from drafter_jobs.contract.metrics import Metric


def _family(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)


class VolumeCollector(Collector):
    """Room on the volume that holds a path, which need not exist yet.

    Parameters
    ----------
    path
        Where the job writes.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics; none while no directory above the path can be read."""
        for directory in (self._path, *self._path.absolute().parents):
            try:
                found = os.statvfs(directory)
            except FileNotFoundError:
                continue
            except OSError:
                return
            available, size = _family(metrics.VOLUME_AVAILABLE), _family(metrics.VOLUME_SIZE)
            available.add_metric([], found.f_bavail * found.f_frsize)
            size.add_metric([], found.f_blocks * found.f_frsize)
            yield available
            yield size
            return


class GpuCollector(Collector):
    """Memory and utilisation of each GPU of the Pod.

    Parameters
    ----------
    nvml
        The module ``pynvml``, whose ``nvmlInit`` has succeeded.
    """

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics; of a GPU that does not answer, none."""
        used, size = _family(metrics.GPU_MEMORY_USED), _family(metrics.GPU_MEMORY_SIZE)
        busy = _family(metrics.GPU_UTILIZATION)
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                device = self._nvml.nvmlDeviceGetHandleByIndex(index)
                memory = self._nvml.nvmlDeviceGetMemoryInfo(device)
                rates = self._nvml.nvmlDeviceGetUtilizationRates(device)
            except self._nvml.NVMLError:
                continue
            used.add_metric([str(index)], memory.used)
            size.add_metric([str(index)], memory.total)
            busy.add_metric([str(index)], rates.gpu / 100)
        yield from (used, size, busy)


def gpu_collector() -> GpuCollector | None:
    """Return a collector of the Pod's GPUs, or None without NVML or a driver."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return GpuCollector(nvml)
