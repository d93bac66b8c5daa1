# What CI runs, and the pieces of it. `just` alone runs what CI runs.

python := env("PYTHON", "python")

# Everything that must pass before a commit. Types and the documentation are checked beside the
# tests, some of which wait for servers
ci: lint layers
    #!/usr/bin/env bash
    set -uo pipefail
    beside=$(mktemp)
    (just types docs > "$beside" 2>&1) & checks=$!
    just test; tests=$?
    wait $checks; checks=$?
    cat "$beside"
    exit $((tests || checks))

# Everything at full size, with random examples: at most 150 minutes
nightly: lint layers types docs
    {{python}} -m pytest -n 2 {{again}} --hypothesis-profile=search --cov --cov-report=
    {{python}} -m coverage report --fail-under=90
    just integrations

# The layers in CONTRIBUTING.md and docs/contribute/architecture.md
tree:
    {{python}} -m scripts.write_architecture

# The figures in the documentation
figures:
    {{python}} -m scripts.draw_diagrams
    {{python}} -m scripts.draw_curve
    {{python}} -m scripts.draw_savings

# Format, then lint what is left
fmt:
    ruff format .
    ruff check --fix .

# Formatting, lint rules and spelling
lint:
    ruff format --check .
    ruff check .
    codespell docs src reproduction README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md

# Types of everything, and those of the examples by a second checker
types:
    mypy
    pyright

# The layer contract: folders import only downwards, and each library is imported in one place
layers:
    lint-imports

# Real servers on a busy machine can miss a deadline: CI runs a failed test once more, and lists it
again := "--reruns 1 --reruns-delay 5 -raR -p test_support.processor_time"

# All tests but those of full size, which `nightly` runs; those of the core cover every branch of it
test *ARGS:
    {{python}} -m pytest -n 2 -m "not nightly" {{again}} tests/core --cov=adacompute.core --cov-report= {{ARGS}}
    {{python}} -m coverage report --include='*/adacompute/core/*' --fail-under=100
    {{python}} -m pytest -n 3 --dist worksteal -m "not nightly" {{again}} --ignore tests/core {{ARGS}}

# Tests of a few seconds
quick *ARGS:
    {{python}} -m pytest -n 2 -m "not slow and not nightly" {{ARGS}}

# How much the tests that CI runs cover; tracing doubles their time
coverage *ARGS:
    {{python}} -m pytest -n 2 -m "not nightly" --cov --cov-report= {{ARGS}}
    {{python}} -m coverage report --fail-under=90

# The documentation; warnings are errors
docs:
    {{python}} -m sphinx -W --keep-going -q -b html docs docs/_build/html
    {{python}} -m sphinx -W --keep-going -q -b doctest docs docs/_build/doctest

# Code, options, settings, metrics and names beside what pyproject.toml allows; `write`: its table
sizes *ARGS:
    {{python}} -m scripts.sizes {{ARGS}}

# The fast benchmarks, to the terminal
bench:
    {{python}} -m benchmarks.solver
    {{python}} -m benchmarks.decisions

# The examples in integrations/, each in an environment of its own; CI does not run them
integrations *FOLDERS:
    {{python}} -m scripts.run_integrations {{FOLDERS}}

# Resolve again the versions that CI, the release and the image install
pins:
    (echo "# Versions that CI installs; plain pins, by name. 'just pins' writes them again."; \
     uv pip compile -q pyproject.toml --all-extras --group dev --no-annotate --no-header) > constraints.txt
    {{python}} -m scripts.hash_requirements
