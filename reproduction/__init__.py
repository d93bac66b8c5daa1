"""Reproduction: every table and figure of the paper, from recorded samples.

It is not installed with the package, which does not import it. Run it from the root of the
repository: ``python -m reproduction RUN… --out DIR``.
"""
