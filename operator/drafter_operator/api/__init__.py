"""The API group ``drafters.dev``: the one source of the CRD schema, its defaults and validation."""
