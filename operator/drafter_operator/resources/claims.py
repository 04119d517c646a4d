"""The claim a run asks for, and the PersistentVolumeClaim made from it."""

from __future__ import annotations

from drafter_operator.resources import names, pods
from drafter_operator.run import Run


def claim(run: Run) -> pods.Object | None:
    """Return the claim to make, or None if the run uses an existing one.

    It has no owner: the weights in it outlive the run.
    """
    template = run.spec.storage.claim_template
    if template is None:
        return None
    spec: pods.Object = {
        "accessModes": [template.access_mode],
        "resources": {"requests": {"storage": template.size}},
    }
    if template.storage_class_name is not None:
        spec["storageClassName"] = template.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.claim_name(run),
            "namespace": run.namespace,
            "labels": pods.labels(run, "storage"),
        },
        "spec": spec,
    }
