"""What the administrator of the cluster decides for every run."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class OperatorSettings:
    """Settings of the operator, from its command line.

    Attributes
    ----------
    gpu_resource_name
        Extended resource a GPU is asked for by.
    job_ttl_seconds
        Time a finished Job is kept; its result is in the run's status by then.
    job_backoff_limit
        Times a Job starts again after a failure that is worth another try.
    image_pull_secrets
        Names of Secrets for the images, in each run's namespace.
    environment
        Names and values of variables in every Pod of a run, such as a proxy.
    """

    gpu_resource_name: str = "nvidia.com/gpu"
    job_ttl_seconds: int = 24 * 3600
    job_backoff_limit: int = 3
    image_pull_secrets: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
