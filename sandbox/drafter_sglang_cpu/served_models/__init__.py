"""The model classes a CPU server offers at once, named to SGLang as an external package.

SGLang then imports its own two hundred model modules only for an architecture that is not here,
which saves most of its start-up time.
"""
