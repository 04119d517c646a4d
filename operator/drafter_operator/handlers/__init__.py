"""Thin kopf handlers: parse, observe, decide, apply, write the status once."""
