"""The quick start: one DrafterRun on a small real model, in the sandbox."""
