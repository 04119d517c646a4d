"""The connection to the API server: from inside a Pod, or by a kubeconfig."""

from __future__ import annotations

from importlib.metadata import version

import kubernetes


def connect(identity: str) -> kubernetes.client.ApiClient:
    """Return a client with the Pod's credentials, or with those of the kubeconfig.

    Parameters
    ----------
    identity
        Of the process, shown to the API server.

    Raises
    ------
    kubernetes.config.ConfigException
        There are neither.
    """
    configuration = kubernetes.client.Configuration()
    try:
        kubernetes.config.load_incluster_config(configuration)
    except kubernetes.config.ConfigException:
        kubernetes.config.load_kube_config(client_configuration=configuration)
    client = kubernetes.client.ApiClient(configuration)
    client.user_agent = f"drafter-operator/{version('drafter-operator')} ({identity})"
    return client
