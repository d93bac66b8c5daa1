"""Run the command line as ``python -m adacompute``."""

from adacompute.cli.main import main

main()
