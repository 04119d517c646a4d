"""What the jobs promise to the operator, and what SGLang promises to the jobs.

Modules here import neither torch nor sglang: the operator reads them too.
"""
