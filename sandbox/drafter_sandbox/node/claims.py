"""Binds claims to volumes, and makes a directory for each claim of the default class."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from drafter_sandbox.admission import DEFAULT_CLASS_ANNOTATION
from drafter_sandbox.node.scheduler import FINISHED
from drafter_sandbox.quantities import parse_quantity
from drafter_sandbox.store import Store

STORAGE_CLASS = "sandbox-local"
PROVISIONER = "drafters.dev/sandbox-local"
PROTECTION = "kubernetes.io/pvc-protection"


def ensure_storage_class(store: Store) -> None:
    """Create the default StorageClass unless it is there."""
    if store.get("storageclasses", None, STORAGE_CLASS, "storage.k8s.io") is None:
        store.create(
            "storageclasses",
            None,
            {
                "metadata": {
                    "name": STORAGE_CLASS,
                    "annotations": {DEFAULT_CLASS_ANNOTATION: "true"},
                },
                "provisioner": PROVISIONER,
                "reclaimPolicy": "Delete",
                "volumeBindingMode": "Immediate",
            },
            "storage.k8s.io",
        )


def matching_volume(
    claim: Mapping[str, Any], volumes: Iterable[Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the smallest volume that a claim may have, or None.

    Parameters
    ----------
    claim
        A claim that is not bound.
    volumes
        All volumes.
    """
    spec = claim["spec"]
    wanted = parse_quantity(spec.get("resources", {}).get("requests", {}).get("storage", "0"))
    named = spec.get("volumeName")
    fitting = []
    for volume in volumes:
        reference = volume["spec"].get("claimRef")
        ours = reference is None or (
            reference.get("namespace") == claim["metadata"]["namespace"]
            and reference.get("name") == claim["metadata"]["name"]
            and reference.get("uid") in (None, claim["metadata"]["uid"])
        )
        size = parse_quantity(volume["spec"].get("capacity", {}).get("storage", "0"))
        if not ours or size < wanted or (named and volume["metadata"]["name"] != named):
            continue
        if not named and (volume["spec"].get("storageClassName") or "") != (
            spec.get("storageClassName") or ""
        ):
            continue
        if not set(spec.get("accessModes") or []) <= set(volume["spec"].get("accessModes") or []):
            continue
        fitting.append((size, volume["metadata"]["name"], volume))
    return min(fitting, key=lambda found: found[:2])[2] if fitting else None


class ClaimController:
    """Binds claims, provisions directories, and removes them with their claims."""

    def __init__(self, store: Store, root: Path) -> None:
        self._store = store
        self._root = root

    def reconcile(self) -> float | None:
        """Look at every claim and every volume."""
        for claim in self._store.list("persistentvolumeclaims"):
            if claim["metadata"].get("deletionTimestamp"):
                self._let_go(claim)
            elif claim["status"].get("phase") == "Pending":
                self._bind(claim)
        for volume in self._store.list("persistentvolumes"):
            self._release(volume)
        return None

    def _bind(self, claim: dict[str, Any]) -> None:
        spec = claim["spec"]
        volume = matching_volume(claim, self._store.list("persistentvolumes"))
        if volume is None and spec.get("volumeName") is None:
            if spec.get("storageClassName", STORAGE_CLASS) != STORAGE_CLASS:
                return
            volume = self._provision(claim)
        if volume is None:
            return
        metadata = claim["metadata"]
        name = volume["metadata"]["name"]
        bound = self._store.get("persistentvolumes", None, name)
        assert bound is not None
        bound["spec"]["claimRef"] = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        }
        self._store.update("persistentvolumes", None, name, bound)
        self._store.patch_status(
            "persistentvolumes", None, name, lambda status: status.update(phase="Bound")
        )
        spec["volumeName"] = name
        finalizers = metadata.setdefault("finalizers", [])
        if PROTECTION not in finalizers:
            finalizers.append(PROTECTION)
        self._store.update("persistentvolumeclaims", metadata["namespace"], metadata["name"], claim)
        capacity, modes = volume["spec"]["capacity"], volume["spec"].get("accessModes", [])
        self._store.patch_status(
            "persistentvolumeclaims",
            metadata["namespace"],
            metadata["name"],
            lambda status: status.update(phase="Bound", capacity=capacity, accessModes=modes),
        )

    def _let_go(self, claim: dict[str, Any]) -> None:
        """Let a deleted claim go once no Pod uses its directory any more."""
        metadata = claim["metadata"]
        finalizers = metadata.get("finalizers") or []
        if PROTECTION not in finalizers or self._is_used(claim):
            return
        metadata["finalizers"] = [name for name in finalizers if name != PROTECTION]
        self._store.update("persistentvolumeclaims", metadata["namespace"], metadata["name"], claim)

    def _is_used(self, claim: Mapping[str, Any]) -> bool:
        metadata = claim["metadata"]
        return any(
            volume.get("persistentVolumeClaim", {}).get("claimName") == metadata["name"]
            for pod in self._store.list("pods", metadata["namespace"])
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in FINISHED
            for volume in pod["spec"].get("volumes") or []
        )

    def _provision(self, claim: Mapping[str, Any]) -> dict[str, Any]:
        metadata = claim["metadata"]
        name = f"pvc-{metadata['uid']}"
        directory = self._root / name
        directory.mkdir(parents=True, exist_ok=True)
        return self._store.create(
            "persistentvolumes",
            None,
            {
                "metadata": {
                    "name": name,
                    "annotations": {"pv.kubernetes.io/provisioned-by": PROVISIONER},
                },
                "spec": {
                    "capacity": {"storage": claim["spec"]["resources"]["requests"]["storage"]},
                    "accessModes": claim["spec"]["accessModes"],
                    "persistentVolumeReclaimPolicy": "Delete",
                    "storageClassName": STORAGE_CLASS,
                    "hostPath": {"path": str(directory)},
                },
            },
        )

    def _release(self, volume: Mapping[str, Any]) -> None:
        name = volume["metadata"]["name"]
        reference = volume["spec"].get("claimRef") or {}
        if "uid" not in reference:
            if not (volume.get("status") or {}).get("phase"):
                self._store.patch_status(
                    "persistentvolumes", None, name, lambda status: status.update(phase="Available")
                )
            return
        claim = self._store.get("persistentvolumeclaims", reference["namespace"], reference["name"])
        if claim is not None and claim["metadata"]["uid"] == reference["uid"]:
            return
        ours = (volume["metadata"].get("annotations") or {}).get(
            "pv.kubernetes.io/provisioned-by"
        ) == PROVISIONER
        if ours and volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete":
            shutil.rmtree(self._root / name, ignore_errors=True)
            self._store.delete("persistentvolumes", None, name)
        elif (volume.get("status") or {}).get("phase") != "Released":
            self._store.patch_status(
                "persistentvolumes", None, name, lambda status: status.update(phase="Released")
            )
