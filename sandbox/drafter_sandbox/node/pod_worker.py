"""The life of one Pod on the node: volumes, init containers, containers, probes, the end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from drafter_sandbox.errors import ApiError
from drafter_sandbox.marked_processes import STATE_MARK
from drafter_sandbox.metadata import timestamp
from drafter_sandbox.node import container_status as states
from drafter_sandbox.node.environment import (
    MissingReferenceError,
    container_environment,
    expand,
)
from drafter_sandbox.node.images import Image, ImageTable, system_path
from drafter_sandbox.node.logs import PodLogs
from drafter_sandbox.node.probes import ContainerProbes, probe_succeeds
from drafter_sandbox.node.processes import (
    CONTAINER_MARK,
    ContainerProcess,
    start_container,
)
from drafter_sandbox.node.recorder import EventRecorder
from drafter_sandbox.node.substitutions import Substitutions
from drafter_sandbox.node.volumes import mounted_paths, prepare_volumes, remove_volumes
from drafter_sandbox.store import Store

RUNTIME_DIRECTORY = Path(__file__).parent / "pod_runtime"
VOLUME_RETRY_SECONDS = 1.0
HEALTHY_SECONDS = 600.0
"""A container that ran this long starts its backoff anew."""

START_ERROR_EXIT_CODE = 128

Pod = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class NodeServices:
    """What a Pod needs of its node.

    Attributes
    ----------
    kubeconfig_for
        Returns a kubeconfig of a ServiceAccount, by namespace and name.
    hosts_for
        Returns the file with the names of Services, by namespace.
    backoff_seconds
        First pause before a restart.
    """

    store: Store
    state: Path
    images: ImageTable
    logs: PodLogs
    events: EventRecorder
    http: aiohttp.ClientSession
    kubeconfig_for: Callable[[str, str], Path]
    hosts_for: Callable[[str], Path]
    backoff_seconds: float


class PodWorker:
    """Runs one Pod until it is gone.

    Parameters
    ----------
    address
        The Pod's address.
    """

    def __init__(self, node: NodeServices, pod: Pod, address: str) -> None:
        self._node = node
        self._pod = pod
        self._address = address
        self._namespace: str = pod["metadata"]["namespace"]
        self._name: str = pod["metadata"]["name"]
        self._uid: str = pod["metadata"]["uid"]
        self._spec: Mapping[str, Any] = pod["spec"]
        self._policy: str = self._spec["restartPolicy"]
        self._root = node.state / "pods" / self._uid
        self._volumes: dict[str, Path] = {}
        self._processes: dict[str, ContainerProcess] = {}
        # A task that nobody refers to may vanish before it is done.
        self._killers: set[asyncio.Task[None]] = set()
        self._ending = False
        self._disrupted = False
        self._failure: dict[str, str] = {}
        self._restarts_in_a_row: dict[str, int] = {}
        self._init_failed = False
        status = pod.get("status", {})
        # A Pod never goes back to Pending, whatever happens to the node.
        self._initialised = status.get("phase") == "Running"
        self._init_statuses = self._first_statuses("initContainers", status)
        self._statuses = self._first_statuses("containers", status)

    def _first_statuses(self, kind: str, status: Mapping[str, Any]) -> dict[str, states.Status]:
        field = "initContainerStatuses" if kind == "initContainers" else "containerStatuses"
        known = {found["name"]: dict(found) for found in status.get(field) or []}
        return {
            container["name"]: known.get(
                container["name"], states.new_status(container, "ContainerCreating")
            )
            for container in self._spec.get(kind) or []
        }

    # The status

    def _publish(self) -> None:
        phase = states.pod_phase(
            self._policy, list(self._statuses.values()), self._initialised, self._init_failed
        )
        ready = bool(self._statuses) and all(found["ready"] for found in self._statuses.values())

        # A Pod that is told to end for a fault of its own fails once its containers have ended.
        failed = bool(self._failure) and not self._processes

        def change(status: dict[str, Any]) -> None:
            status["phase"] = "Failed" if failed else phase
            if failed:
                status.update(self._failure)
            status["podIP"] = self._address
            status["podIPs"] = [{"ip": self._address}]
            status["hostIP"] = "127.0.0.1"
            status.setdefault("startTime", timestamp())
            status["containerStatuses"] = list(self._statuses.values())
            if self._init_statuses:
                status["initContainerStatuses"] = list(self._init_statuses.values())
            status["conditions"] = states.conditions(
                status.get("conditions") or [], status["phase"], self._initialised, ready
            )
            if self._disrupted and self._policy == "Never":
                status["conditions"] = states.with_disruption(status["conditions"])

        with contextlib.suppress(ApiError):
            self._node.store.patch_status("pods", self._namespace, self._name, change)

    def _event(self, kind: str, reason: str, message: str) -> None:
        self._node.events.post(self._pod, kind, reason, message)

    # The life

    async def run(self) -> None:
        """Live until every container has ended for good; cancelled when the Pod is deleted."""
        self._adopt_after_restart()
        self._publish()
        life = asyncio.create_task(self._live())
        try:
            # The task keeps running at the deadline: it is what knows the processes to end.
            async with asyncio.timeout(self._seconds_left()):
                await asyncio.shield(life)
        except TimeoutError:
            self._failure = {
                "reason": "DeadlineExceeded",
                "message": "Pod was active on the node longer than specified deadline",
            }
            await self.end(self._spec.get("terminationGracePeriodSeconds", 30))
            await _cancel(life)
            self._publish()
        except asyncio.CancelledError:
            await _cancel(life)
            raise
        except Exception as error:
            await self.end(grace_seconds=0)
            message = f"the sandbox could not run the Pod: {error}"
            self._failure = {"reason": "NodeError", "message": message}
            self._publish()
            raise

    async def _live(self) -> None:
        for container in self._spec.get("initContainers") or []:
            if container.get("restartPolicy") == "Always":
                message = f"init container {container['name']}: the sandbox offers no sidecars"
                self._failure = {"reason": "NotOffered", "message": message}
                self._publish()
                return
        await self._prepare_volumes()
        await self._run_init_containers()
        if not self._init_failed:
            self._initialised = True
            self._publish()
            tasks = [
                asyncio.create_task(self._run_container(container))
                for container in self._spec["containers"]
            ]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        self._publish()

    def _seconds_left(self) -> float | None:
        deadline = self._spec.get("activeDeadlineSeconds")
        if deadline is None:
            return None
        found = self._node.store.get("pods", self._namespace, self._name) or {}
        begun = found.get("status", {}).get("startTime")
        spent = (datetime.now(UTC) - datetime.fromisoformat(begun)).total_seconds() if begun else 0
        return max(0.0, float(deadline) - spent)

    def _adopt_after_restart(self) -> None:
        """Say of containers that ran when the node stopped that they have ended."""
        for status in [*self._init_statuses.values(), *self._statuses.values()]:
            begun = status["state"].get("running")
            if begun:
                self._disrupted = True
                status["state"] = states.terminated(
                    137, begun["startedAt"], "the sandbox was restarted", "NodeRestart"
                )
                status["ready"] = status["started"] = False

    async def _prepare_volumes(self) -> None:
        while True:
            try:
                self._volumes = prepare_volumes(self._node.store, self._pod, self._root / "volumes")
                return
            except (MissingReferenceError, OSError) as error:
                self._event("Warning", "FailedMount", f"MountVolume.SetUp failed: {error}")
                for status in self._statuses.values():
                    status["state"] = states.waiting("ContainerCreating", str(error))
                self._publish()
                await asyncio.sleep(VOLUME_RETRY_SECONDS)

    async def _run_init_containers(self) -> None:
        for container in self._spec.get("initContainers") or []:
            status = self._init_statuses[container["name"]]
            ended = status["state"].get("terminated")
            if ended and ended["exitCode"] == 0:
                continue
            while True:
                code = await self._run_once(container, status)
                if code == 0:
                    status["ready"] = True
                    self._publish()
                    break
                if self._policy == "Never" or self._ending:
                    self._init_failed = True
                    self._publish()
                    return
                await self._back_off(container, status)

    async def _run_container(self, container: Mapping[str, Any]) -> None:
        status = self._statuses[container["name"]]
        # The last end is there when the sandbox stopped while the container waited for a restart.
        ended = status["state"].get("terminated") or (
            status["lastState"].get("terminated") if status["state"].get("waiting") else None
        )
        if ended:
            if not self._restarts(ended["exitCode"]):
                return
            await self._back_off(container, status)
        while True:
            began = time.monotonic()
            code = await self._run_once(container, status)
            if not self._restarts(code):
                return
            if time.monotonic() - began > HEALTHY_SECONDS:
                self._restarts_in_a_row.pop(container["name"], None)
            await self._back_off(container, status)

    def _restarts(self, exit_code: int) -> bool:
        if self._ending:
            return False
        return self._policy == "Always" or (self._policy == "OnFailure" and exit_code != 0)

    async def _back_off(self, container: Mapping[str, Any], status: states.Status) -> None:
        """Wait before a restart; the first one comes at once."""
        name = container["name"]
        before = self._restarts_in_a_row.get(name, 0)
        self._restarts_in_a_row[name] = before + 1
        if ended := status["state"].get("terminated"):
            status["lastState"] = {"terminated": ended}
        if before:
            pause = states.backoff_seconds(before, self._node.backoff_seconds)
            status["state"] = states.waiting(
                "CrashLoopBackOff",
                f"back-off {pause:.0f}s restarting failed container={name} pod={self._name}",
            )
            self._event("Warning", "BackOff", f"Back-off restarting failed container {name}")
            self._publish()
            await asyncio.sleep(pause)
        status["restartCount"] += 1

    # One start of one container

    async def _run_once(self, container: Mapping[str, Any], status: states.Status) -> int:
        """Start a container, wait for its end, and return its exit code."""
        image = await self._known_image(container, status)
        started_at = timestamp()
        termination_log = self._termination_log(container)
        try:
            argv, environment = await self._command(container, status, image)
            log = self._node.logs.file(self._uid, container["name"], status["restartCount"])
            environment[CONTAINER_MARK] = (
                f"{self._uid}/{container['name']}/{status['restartCount']}"
            )
            directory = self._working_directory(container)
            process = await start_container(argv, environment, directory, log)
        except OSError as error:
            message = f"cannot start {container.get('command') or container['image']}: {error}"
            status["state"] = states.terminated(
                START_ERROR_EXIT_CODE, started_at, message, "StartError"
            )
            self._event("Warning", "Failed", f"Error: {message}")
            self._publish()
            return START_ERROR_EXIT_CODE
        name = container["name"]
        self._processes[name] = process
        status["state"] = states.running(started_at)
        self._event("Normal", "Started", f"Started container {name}")
        probes = asyncio.create_task(self._probe(container, status, environment, process))
        try:
            code = await process.wait()
        finally:
            await _cancel(probes)
            self._processes.pop(name, None)
        status["ready"] = status["started"] = False
        status["state"] = states.terminated(
            code, started_at, self._message(container, termination_log, log, code)
        )
        self._publish()
        return code

    async def _known_image(self, container: Mapping[str, Any], status: states.Status) -> Image:
        image = self._node.images.find(container.get("image", ""))
        while image is None:
            message = (
                f'no local command stands for the image "{container.get("image")}":'
                f" add it to {self._node.images.source}"
            )
            if "waiting" not in status["state"] or (
                status["state"]["waiting"].get("reason") != "ErrImagePull"
            ):
                status["state"] = states.waiting("ErrImagePull", message)
                self._event("Warning", "Failed", message)
                self._publish()
            await asyncio.sleep(VOLUME_RETRY_SECONDS)
        return image

    def _termination_log(self, container: Mapping[str, Any]) -> Path:
        path: Path = self._root / container["name"] / "termination-log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        return path

    def _substitutions(self, container: Mapping[str, Any]) -> Substitutions:
        paths = mounted_paths(container, self._volumes)
        termination = self._root / container["name"] / "termination-log"
        return Substitutions(
            {**paths, container["terminationMessagePath"]: str(termination)}, self._address
        )

    def _working_directory(self, container: Mapping[str, Any]) -> Path:
        own: Path = self._root / container["name"] / "root"
        own.mkdir(parents=True, exist_ok=True)
        if wanted := container.get("workingDir"):
            directory = Path(self._substitutions(container).apply(wanted))
            if directory.is_dir():
                return directory
            # A directory of the image: it begins empty, as one that the image lacks.
            own = own / wanted.lstrip("/")
            own.mkdir(parents=True, exist_ok=True)
        return own

    async def _command(
        self, container: Mapping[str, Any], status: states.Status, image: Image
    ) -> tuple[list[str], dict[str, str]]:
        declared = await self._declared(container, status)
        environment = self._environment(container, declared, image)
        substitutions = self._substitutions(container)

        def fill(words: Sequence[str]) -> list[str]:
            # Variables as declared: a path that was replaced must not be replaced again.
            return [substitutions.apply(expand(word, declared)) for word in words]

        argv = image.argv(fill(container.get("command") or []), fill(container.get("args") or []))
        if not argv:
            raise OSError(f"neither the container nor {self._node.images.source} names a command")
        program = shutil.which(argv[0], path=environment["PATH"])
        if program is None:
            raise OSError(f'"{argv[0]}": executable file not found in $PATH')
        return [program, *argv[1:]], environment

    def _environment(
        self, container: Mapping[str, Any], declared: Mapping[str, str], image: Image
    ) -> dict[str, str]:
        """Return the whole environment; nothing of the sandbox's own reaches a Pod."""
        account = self._spec.get("serviceAccountName") or "default"
        home = self._root / container["name"] / "home"
        home.mkdir(parents=True, exist_ok=True)
        python_path = [str(RUNTIME_DIRECTORY)]
        if "PYTHONPATH" in image.environment:
            python_path.append(image.environment["PYTHONPATH"])
        base = {
            "HOME": str(home),
            "HOSTNAME": self._spec.get("hostname") or self._name,
            "LANG": "C.UTF-8",
            "TERM": "xterm",
            **image.environment,
            "PATH": ":".join((*image.path, *system_path())),
            "PYTHONPATH": ":".join(python_path),
            "SANDBOX_HOSTS": str(self._node.hosts_for(self._namespace)),
            STATE_MARK: str(self._node.state),
        }
        if self._spec.get("automountServiceAccountToken") is not False:
            base["KUBECONFIG"] = str(self._node.kubeconfig_for(self._namespace, account))
        substitutions = self._substitutions(container)
        filled = {name: substitutions.apply(value) for name, value in declared.items()}
        if "PYTHONPATH" in filled:
            filled["PYTHONPATH"] = f"{base['PYTHONPATH']}:{filled['PYTHONPATH']}"
        if temporary := mounted_paths(container, self._volumes).get("/tmp"):
            base["TMPDIR"] = str(self._short_path(Path(temporary)))
        return base | filled

    async def _declared(
        self, container: Mapping[str, Any], status: states.Status
    ) -> dict[str, str]:
        """Return the variables the container declares, once all they refer to is there."""
        pod = {**self._pod, "status": {"podIP": self._address, "hostIP": "127.0.0.1"}}
        while True:
            try:
                return container_environment(
                    pod,
                    container,
                    lambda plural, name: self._node.store.get(plural, self._namespace, name),
                )
            except MissingReferenceError as error:
                if status["state"].get("waiting", {}).get("message") != str(error):
                    status["state"] = states.waiting("CreateContainerConfigError", str(error))
                    self._event("Warning", "Failed", f"Error: {error}")
                    self._publish()
                await asyncio.sleep(VOLUME_RETRY_SECONDS)

    def _short_path(self, directory: Path) -> Path:
        """Return a short name of a directory: the path of a socket may have 107 bytes only."""
        link = _temporary_link(self._uid)
        if not link.is_symlink():
            link.symlink_to(directory, target_is_directory=True)
        return link

    async def _probe(
        self,
        container: Mapping[str, Any],
        status: states.Status,
        environment: Mapping[str, str],
        process: ContainerProcess,
    ) -> None:
        def changed(started: bool, ready: bool) -> None:
            status["started"], status["ready"] = started, ready
            self._publish()

        def unhealthy(kind: str) -> None:
            message = f"Container {container['name']} failed {kind.lower()} probe"
            self._event("Warning", "Unhealthy", f"{message}, will be restarted")
            grace = self._spec.get("terminationGracePeriodSeconds", 30)
            self._killers.add(asyncio.create_task(_end_process(process, grace)))

        async def execute(command: Sequence[str]) -> bool:
            probing = await asyncio.create_subprocess_exec(
                *(self._substitutions(container).apply(word) for word in command),
                env=dict(environment),
                cwd=self._working_directory(container),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                return await probing.wait() == 0
            finally:
                if probing.returncode is None:
                    probing.kill()

        async def check(probe: Mapping[str, Any]) -> bool:
            return await probe_succeeds(probe, container, self._address, self._node.http, execute)

        self._publish()
        await ContainerProbes(container, check, changed, unhealthy).watch()

    def _message(
        self, container: Mapping[str, Any], termination_log: Path, log: Path, code: int
    ) -> str:
        content = termination_log.read_bytes() if termination_log.is_file() else b""
        if (
            not content
            and code != 0
            and container["terminationMessagePolicy"] == "FallbackToLogsOnError"
        ):
            lines = log.read_bytes().splitlines(keepends=True)[-80:]
            content = b"".join(lines)[-2048:]
        return content[: states.MESSAGE_LIMIT_BYTES].decode(errors="replace")

    # The end

    async def end(self, grace_seconds: float) -> None:
        """End every container for good: SIGTERM, the grace period, SIGKILL."""
        self._ending = True
        for name in self._processes:
            self._event("Normal", "Killing", f"Stopping container {name}")
        await asyncio.gather(
            *(_end_process(process, grace_seconds) for process in list(self._processes.values()))
        )


def remove_files(state: Path, uid: str) -> None:
    """Remove what belongs to a Pod alone; its logs go too."""
    _temporary_link(uid).unlink(missing_ok=True)
    remove_volumes(state / "pods" / uid)


def remove_files_of_others(state: Path, uids: Collection[str]) -> None:
    """Remove the files of Pods that went while the node was away."""
    root = state / "pods"
    for found in list(root.iterdir()) if root.is_dir() else []:
        if found.name not in uids:
            remove_files(state, found.name)


def _temporary_link(uid: str) -> Path:
    return Path(tempfile.gettempdir()) / f"sandbox-{uid[:13]}"


async def _end_process(process: ContainerProcess, grace_seconds: float) -> None:
    process.terminate()
    try:
        async with asyncio.timeout(grace_seconds):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end, which may be any but an error of our own."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
