"""The other files of this folder are for type checkers; they are never run."""

collect_ignore_glob = ["[!c]*.py"]
