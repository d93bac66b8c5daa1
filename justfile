# What CI runs, and the pieces of it. `just` alone runs everything.

python := env("PYTHON", "python")

# Everything that must pass before a commit
default: lint types layers test docs

# The README's tree, from the modules' docstrings
readme:
    {{python}} docs/readme.py

# Format, then lint what is left
fmt:
    ruff format .
    ruff check --fix .

# Formatting and lint rules
lint:
    ruff format --check .
    ruff check .

# Types of the package, the tests and the benchmarks
types:
    mypy

# The layer contract: folders import only downwards, one library has one door
layers:
    lint-imports

# All tests, with coverage: every branch of the core, most of the rest
test *ARGS:
    {{python}} -m pytest -n 2 --cov --cov-report= {{ARGS}}
    {{python}} -m coverage report --include='*/adacompute/core/*' --fail-under=100
    {{python}} -m coverage report --fail-under=90

# Tests of a few seconds only, without coverage
quick *ARGS:
    {{python}} -m pytest -n 2 -m "not slow" {{ARGS}}

# The documentation, its examples run; warnings are errors
docs:
    {{python}} -m sphinx -W --keep-going -q -b html docs docs/_build/html
    {{python}} -m sphinx -W --keep-going -q -b doctest docs docs/_build/doctest

# Every benchmark, to the terminal
bench:
    {{python}} benchmarks/solver.py
    {{python}} benchmarks/estimator.py
    {{python}} benchmarks/decisions.py
    {{python}} benchmarks/features.py
    {{python}} benchmarks/clients.py
    {{python}} benchmarks/collection.py

# The versions that CI installs, resolved again
pins:
    (echo "# Versions that CI installs; plain pins, by name. 'just pins' writes them again."; \
     uv pip compile -q pyproject.toml --all-extras --group dev --no-annotate --no-header) > constraints.txt
