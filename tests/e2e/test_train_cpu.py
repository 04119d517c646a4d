"""Real speculators under torchrun on a CPU: killed, told to stop, resumed, given bad data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from drafter_jobs.checkpoints import best_checkpoint, complete_checkpoints
from drafter_sandbox.quickstart.tiny_target import HIDDEN_SIZE, VOCABULARY_SIZE
from job_process import wait_for_event
from tiny_training_data import DRAFT_VOCABULARY_SIZE, make_training_data

# Each start imports speculators anew, which takes a minute on a loaded machine.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TIMEOUT_SECONDS = 400
WORKER = "drafter_jobs.speculators_worker"


class Training:
    """Trainings of one output directory, as processes."""

    def __init__(self, root: Path, target: Path, samples: int) -> None:
        self.root = root
        self.target = target
        self.output = root / "checkpoints"
        self.log = root / "termination-log"
        self.dataset, self.hidden_states = make_training_data(
            root, hidden_size=HIDDEN_SIZE, vocabulary_size=VOCABULARY_SIZE, samples=samples
        )
        self._processes: list[subprocess.Popen[str]] = []

    def kill(self) -> None:
        """End what a failed test left running."""
        for process in self._processes:
            process.kill()

    def start(self, epochs: int, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "drafter_jobs.train", "--device", "cpu"]
        command += ["--target", str(self.target), "--output", str(self.output)]
        command += ["--dataset", str(self.dataset), "--hidden-states", str(self.hidden_states)]
        command += ["--epochs", str(epochs), "--ttt-steps", "2", "--learning-rate", "3e-3"]
        command += ["--packed-sequence-length", "64", "--metrics-port", "0"]
        command += ["--draft-vocabulary-size", str(DRAFT_VOCABULARY_SIZE), *arguments]
        environment = os.environ | {
            "DRAFTER_TERMINATION_LOG": str(self.log),
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._processes.append(process)
        return process

    def end(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Wait for a training's end, and return its termination message."""
        _, log = process.communicate(timeout=TIMEOUT_SECONDS)
        message: dict[str, Any] = json.loads(self.log.read_bytes())
        return message | {"exit_code": process.returncode, "log": log}

    def steps(self) -> int:
        return complete_checkpoints(self.output)[-1].global_step


MakeTraining = Callable[[int], Training]


@pytest.fixture
def training_of(tmp_path: Path, tiny_target: Path) -> Iterator[MakeTraining]:
    made: list[Training] = []

    def make(samples: int) -> Training:
        made.append(Training(tmp_path, tiny_target, samples))
        return made[-1]

    yield make
    for training in made:
        training.kill()


def started_by(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def workers(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [child for child in started_by(process) if child.cmdline()[1:4] == ["-u", "-m", WORKER]]


def test_no_kill_loses_more_than_the_work_since_the_last_save(training_of: MakeTraining) -> None:
    training = training_of(120)

    process = training.start(3)
    wait_for_event(process, "saved", 1)
    processes = started_by(process)
    assert workers(process)
    process.kill()
    process.communicate()
    # What is left behind would write beside the next start.
    assert not psutil.wait_procs(processes, timeout=30)[1]
    saved = complete_checkpoints(training.output)
    assert saved

    process = training.start(3)
    wait_for_event(process, "step", 1)
    process.send_signal(signal.SIGTERM)
    stopped = training.end(process)
    assert (stopped["exit_code"], stopped["reason"]) == (143, "Interrupted")
    after = complete_checkpoints(training.output)[-1]
    # Where it was told to stop, not where it had saved before.
    assert after.global_step > saved[-1].global_step
    assert not (training.output / "interrupted").exists()

    finished = training.end(training.start(3))
    assert finished["exit_code"] == 0, finished["log"]
    assert finished["result"]["resumedFromEpoch"] == after.epoch
    assert [found.epoch for found in complete_checkpoints(training.output)] == [0, 1, 2]
    states = [
        json.loads((training.output / str(epoch) / "training_state.json").read_text())
        for epoch in range(3)
    ]
    # Each step was taken once: not one of them again, none left out.
    assert states[-1]["global_step"] == sum(state["epoch_steps"] for state in states)
    assert float(finished["result"]["fullAccuracy"][0]) > 0.3
    best = best_checkpoint(training.output)
    assert best is not None
    assert (training.output / "checkpoint_best").readlink() == Path(best.path.name)
    assert not list(training.output.glob(".*.part"))

    before = {path: path.stat().st_mtime_ns for path in training.output.rglob("*.safetensors")}
    again = training.end(training.start(3))
    assert again["exit_code"] == 0
    assert again["result"] | {"resumedFromEpoch": None} == finished["result"] | {
        "resumedFromEpoch": None
    }
    assert '"event": "training"' not in again["log"]
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_two_processes_stop_at_the_same_step_and_one_goes_on(training_of: MakeTraining) -> None:
    training = training_of(160)

    process = training.start(1, "--processes-per-node", "2")
    wait_for_event(process, "step", 1)
    process.send_signal(signal.SIGTERM)
    stopped = training.end(process)
    assert (stopped["exit_code"], stopped["reason"]) == (143, "Interrupted"), stopped["log"]
    (found,) = complete_checkpoints(training.output)
    state = json.loads((found.path / "training_state.json").read_text())
    assert 0 < found.local_step < state["epoch_steps"]

    process = training.start(1)
    wait_for_event(process, "step", 1)
    (worker,) = workers(process)
    worker.kill()
    killed = training.end(process)
    assert (killed["exit_code"], killed["reason"]) == (1, "InternalError")
    assert "SIGKILL" in killed["message"]
    assert "last checkpoint" in killed["message"]

    finished = training.end(training.start(1))
    assert finished["exit_code"] == 0, finished["log"]
    # One process takes twice the steps: what was done counts twice as many.
    state_after = json.loads((found.path / "training_state.json").read_text())
    assert state_after["epoch_steps"] > 1.5 * state["epoch_steps"]
    assert state_after["global_step"] == state_after["epoch_steps"]
    plan = next(line for line in finished["log"].splitlines() if '"event": "training"' in line)
    share = found.local_step / state["epoch_steps"]
    assert json.loads(plan)["global_step"] == int(share * state_after["epoch_steps"])


def damage_tokens(file: Path) -> None:
    tensors = load_file(file)
    tensors["token_ids"][3] += 1
    save_file(tensors, file)


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def poison(file: Path) -> None:
    tensors = load_file(file)
    tensors["hidden_states"][:] = torch.nan
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("damage", "exit_code", "reason", "words"),
    [
        (damage_tokens, 11, "HiddenStatesInvalid", ("sample 5", "retry Extract")),
        (truncate, 11, "HiddenStatesInvalid", ("retry Extract",)),
        (poison, 14, "TrainingDiverged", ("epoch 0, step", "damaged samples")),
    ],
)
def test_a_damaged_sample_is_not_passed_over(
    training_of: MakeTraining,
    damage: Any,
    exit_code: int,
    reason: str,
    words: tuple[str, ...],
) -> None:
    training = training_of(24)
    damage(training.hidden_states / "hs_5.safetensors")
    ended = training.end(training.start(1))
    assert (ended["exit_code"], ended["reason"]) == (exit_code, reason), ended["log"]
    assert all(word in ended["message"] for word in words), ended["message"]
    assert not complete_checkpoints(training.output)
