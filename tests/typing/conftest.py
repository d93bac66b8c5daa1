"""The file beside this one is for the type checker; it is never run."""

collect_ignore = ["api.py"]
