"""Kubernetes operator that manages the life of speculative-decoding drafters."""
