"""What the images install, and how images/build refuses."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
REQUIREMENTS = REPOSITORY / "requirements"


def pins(name: str) -> dict[str, str]:
    lines = (REQUIREMENTS / name).read_text().splitlines()
    pairs = (line.partition("==")[::2] for line in lines if not line.startswith("#"))
    return {package.lower().replace("_", "-"): version for package, version in pairs}


GENERATORS = ("generate.py", "dashboards/")
"""Modules of the operator that only ``make generate`` runs."""


def imports(sources: Path, pattern: str, without: tuple[str, ...] = ()) -> set[str]:
    """Return the top-level names that modules import."""
    found: set[str] = set()
    for path in sources.glob(pattern):
        if path.relative_to(sources / pattern.split("/")[0]).as_posix().startswith(without):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names)


def distributions(modules: set[str]) -> set[str]:
    known = packages_distributions()
    return {known[module][0].lower().replace("_", "-") for module in modules}


def test_pins_are_what_make_freeze_writes() -> None:
    for image in ("operator", "jobs"):
        done = subprocess.run(
            [sys.executable, str(REQUIREMENTS / "closure"), image],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == (REQUIREMENTS / f"{image}.txt").read_text(), "run: make freeze"


@pytest.mark.parametrize("name", ["operator.txt", "jobs.txt", "build.txt"])
def test_an_image_has_the_versions_the_tests_ran_with(name: str) -> None:
    assert pins(name).items() <= pins("cpu.txt").items()


def test_the_operator_imports_nothing_its_image_lacks() -> None:
    modules = imports(REPOSITORY / "operator", "drafter_operator/**/*.py", GENERATORS)
    modules |= imports(REPOSITORY / "jobs", "drafter_jobs/contract/*.py")
    assert "kopf" in modules
    own = {"drafter_operator", "drafter_jobs"}
    assert distributions(modules - own) <= set(pins("operator.txt"))
    assert "torch" not in pins("operator.txt")


def test_the_jobs_import_nothing_their_image_lacks() -> None:
    modules = imports(REPOSITORY / "jobs", "drafter_jobs/**/*.py") - {"drafter_jobs"}
    assert "torch" in modules
    installed = set(pins("jobs.txt")) | (set(pins("engines.txt")) - {"sglang"})
    assert distributions(modules) <= installed


def build(*arguments: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", str(REPOSITORY / "images" / "build"), *arguments],
        env={"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def test_build_explains_itself() -> None:
    done = build("--help")
    assert done.returncode == 0
    assert "--base REF" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name an image: operator or jobs"),
        (["trainer"], "trainer is no image"),
        (["operator", "jobs"], "one image at a time"),
        (["--bass", "x", "operator"], "--bass is no option"),
        (["operator", "--base"], "--base needs a value"),
        (["operator", "--ca-bundle", "/absent.pem"], "/absent.pem cannot be read"),
        (["operator", "--engine", "docker"], "--engine docker: podman or buildah"),
    ],
)
def test_build_refuses_and_says_why(arguments: list[str], message: str) -> None:
    done = build(*arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_build_says_that_there_is_no_engine(tmp_path: Path) -> None:
    for program in ("dirname", "cat", "sed"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    done = build("operator", path=str(tmp_path))
    assert done.returncode == 2
    assert "neither podman nor buildah is on the PATH" in done.stderr


def test_the_compiler_s_stand_in_refuses_what_it_does_not_hold(tmp_path: Path) -> None:
    source = tmp_path / "triton" / "backends" / "nvidia" / "driver.c"
    source.parent.mkdir(parents=True)
    source.write_text("int other;")
    for name in (source, tmp_path / "kernel.c"):
        done = subprocess.run(
            [str(REPOSITORY / "images/jobs/prebuilt-driver"), str(name), "-o", "built.so"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert f"no C compiler in this image, and {name} is not the driver" in done.stderr
        assert not (tmp_path / "built.so").exists()
