"""Reproduction: every table and figure of the paper, and methods of the literature.

It is not installed with the package, which does not import it. Run it from the root of the
repository: ``python -m reproduction RUN… --out DIR``.
"""
