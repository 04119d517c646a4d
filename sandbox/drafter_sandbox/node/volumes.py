"""The directories behind a Pod's volumes."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drafter_sandbox.node.environment import MissingReferenceError, field_of
from drafter_sandbox.store import Store


def prepare_volumes(store: Store, pod: Mapping[str, Any], root: Path) -> dict[str, Path]:
    """Return the directory of each volume of a Pod, made and filled as needed.

    Parameters
    ----------
    root
        Directory for the volumes that live and die with the Pod.

    Raises
    ------
    MissingReferenceError
        A claim, ConfigMap or Secret is missing, a path leaves its volume, or something is not
        offered here.
    """
    for container in [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]:
        for mount in container.get("volumeMounts") or []:
            if "subPathExpr" in mount:
                raise MissingReferenceError("subPathExpr is not offered by the sandbox")
            _inside(mount.get("subPath", ""))
    found = {}
    for volume in pod["spec"].get("volumes") or []:
        found[volume["name"]] = _directory(store, pod, volume, root / volume["name"])
    return found


def _directory(store: Store, pod: Mapping[str, Any], volume: Mapping[str, Any], own: Path) -> Path:
    namespace = pod["metadata"]["namespace"]
    if "persistentVolumeClaim" in volume:
        return _claimed(store, namespace, volume["persistentVolumeClaim"]["claimName"])
    if "hostPath" in volume:
        path = Path(volume["hostPath"]["path"])
        if volume["hostPath"].get("type") == "DirectoryOrCreate":
            path.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            raise MissingReferenceError(f"hostPath {path} does not exist")
        return path
    own.mkdir(parents=True, exist_ok=True)
    if "emptyDir" in volume:
        return own
    for kind, plural, name_field in (
        ("configMap", "configmaps", "name"),
        ("secret", "secrets", "secretName"),
    ):
        if kind in volume:
            source = volume[kind]
            _write_keys(store, namespace, plural, {**source, "name": source[name_field]}, own)
            return own
    if "downwardAPI" in volume:
        _write_fields(pod, volume["downwardAPI"], own)
        return own
    if "projected" in volume:
        for source in volume["projected"].get("sources") or []:
            if "configMap" in source:
                _write_keys(store, namespace, "configmaps", source["configMap"], own)
            elif "secret" in source:
                _write_keys(store, namespace, "secrets", source["secret"], own)
            elif "downwardAPI" in source:
                _write_fields(pod, source["downwardAPI"], own)
        return own
    kinds = ", ".join(sorted(volume.keys() - {"name"}))
    raise MissingReferenceError(f"volumes of kind {kinds} are not offered by the sandbox")


def _claimed(store: Store, namespace: str, name: str) -> Path:
    claim = store.get("persistentvolumeclaims", namespace, name)
    if claim is None:
        raise MissingReferenceError(f'persistentvolumeclaim "{name}" not found')
    volume = store.get("persistentvolumes", None, claim["spec"].get("volumeName") or "")
    if claim["status"].get("phase") != "Bound" or volume is None:
        raise MissingReferenceError(f'persistentvolumeclaim "{name}" is not bound')
    source = volume["spec"].get("hostPath") or volume["spec"].get("local")
    if source is None:
        raise MissingReferenceError(f"the volume of claim {name} is neither hostPath nor local")
    path = Path(source["path"])
    if not path.is_dir():
        raise MissingReferenceError(f"the directory {path} of claim {name} does not exist")
    return path


def _write_keys(
    store: Store, namespace: str, plural: str, source: Mapping[str, Any], directory: Path
) -> None:
    body = store.get(plural, namespace, source["name"])
    if body is None:
        if source.get("optional"):
            return
        raise MissingReferenceError(f'{plural[:-1]} "{source["name"]}" not found')
    values = _contents(plural, body)
    # Not the 0644 of Kubernetes: here other users of the machine could read a Secret.
    mode = source.get("defaultMode", 0o644) & (0o400 if plural == "secrets" else 0o777)
    for item in source.get("items") or [{"key": key, "path": key} for key in values]:
        key = item["key"]
        if key in values:
            _write(directory / _inside(item["path"]), values[key], item.get("mode", mode))
        elif not source.get("optional"):
            raise MissingReferenceError(f"{plural[:-1]} {source['name']} has no key {key}")


def _contents(plural: str, body: Mapping[str, Any]) -> dict[str, bytes]:
    data, binary = body.get("data") or {}, body.get("binaryData") or {}
    encoded = data if plural == "secrets" else binary
    found = {name: base64.b64decode(value) for name, value in encoded.items()}
    if plural == "configmaps":
        found |= {name: value.encode() for name, value in data.items()}
    return found


def _inside(path: str) -> str:
    """Return a path relative to a volume.

    Raises
    ------
    MissingReferenceError
        It leaves the volume.
    """
    if path.startswith("/") or ".." in path.split("/"):
        raise MissingReferenceError(
            f'the path "{path}" leaves its volume: use a relative path without ".."'
        )
    return path


def _write_fields(pod: Mapping[str, Any], source: Mapping[str, Any], directory: Path) -> None:
    for item in source.get("items") or []:
        text = field_of(pod, item["fieldRef"]["fieldPath"])
        _write(directory / _inside(item["path"]), text.encode(), 0o644)


def _write(path: Path, content: bytes, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.new")
    beside.write_bytes(content)
    beside.chmod(mode)
    beside.replace(path)


def mounted_paths(container: Mapping[str, Any], volumes: Mapping[str, Path]) -> dict[str, str]:
    """Return the directory or file of this machine behind each mount path of a container."""
    found = {}
    for mount in container.get("volumeMounts") or []:
        directory = volumes[mount["name"]]
        if mount.get("subPath"):
            directory = directory / mount["subPath"]
            if not directory.exists():
                directory.mkdir(parents=True)
        found[mount["mountPath"]] = str(directory)
    return found


def remove_volumes(root: Path) -> None:
    """Remove the directories that belong to a Pod alone."""
    shutil.rmtree(root, ignore_errors=True)
