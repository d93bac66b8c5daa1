"""Run the command line as ``python -m adacompute``."""

from adacompute.cli import main

main()
