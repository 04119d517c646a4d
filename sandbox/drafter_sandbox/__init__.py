"""Kubernetes-shaped sandbox on one machine: an API server and a node that runs Pods as processes."""
