"""Builders of child objects: Jobs, Deployments, Services, claims."""
