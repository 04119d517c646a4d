"""A sandbox for Kubernetes objects on one machine: an API server, and a node of local processes."""
