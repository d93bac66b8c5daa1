"""Errors: every failure that a caller can expect, in one tree.

AdaComputeError
├── ConfigError        an option or file of options that cannot be used   (ValueError)
├── DataError          samples, questions or tables that cannot be used   (ValueError)
│   └── BundleError    a policy bundle that cannot be loaded or does not fit
├── InfeasibleBudget   a budget below what the cheapest choice costs      (ValueError)
├── NotFittedError     an estimator that is used before fit               (ValueError)
├── MissingExtra       an optional dependency that is not installed       (ImportError)
├── GraderError        a grader of the user's own that failed
└── ModelError         an upstream that failed, with its own message in ours
    ├── RateLimited    it still asked to slow down when patience ran out
    ├── ModelTimeout   it did not answer in time
    └── RequestRejected it will not take this request, however often it is asked

Each takes one message and no other argument, so that it survives pickling across processes. A
message says what, the value, the bound and the remedy. It knows nothing of who prints it.
"""

from __future__ import annotations

import importlib
from typing import Any


class AdaComputeError(Exception):
    """Any expected failure; the command line prints it as one sentence and exits with 1."""


class ConfigError(AdaComputeError, ValueError):
    """An option, or a file of options, that cannot be used as given."""


class DataError(AdaComputeError, ValueError):
    """Samples, questions or a table that cannot be used as they are."""


class BundleError(DataError):
    """A policy bundle that cannot be loaded, or that does not fit what it is asked to run."""


class InfeasibleBudget(AdaComputeError, ValueError):  # noqa: N818 - it names the state, not a fault
    """A budget below what the cheapest choice of every question costs."""


class NotFittedError(AdaComputeError, ValueError, AttributeError):
    """An estimator that is used before it was fitted, as scikit-learn's error of this name."""


class MissingExtra(AdaComputeError, ImportError):  # noqa: N818 - it names what is missing
    """An optional dependency that is needed here and not installed."""


class GraderError(AdaComputeError):
    """A grader of the user's own that failed or broke its protocol."""


class ModelError(AdaComputeError):
    """An upstream that failed for good: retries, where they make sense, are behind it."""


class RateLimited(ModelError):  # noqa: N818 - it names the state, not a fault
    """An upstream that still asked to slow down after the last attempt.

    ``retry_after_s`` is how long it asked to wait, 0 where it does not say.
    """

    retry_after_s: float = 0.0


class ModelTimeout(ModelError):  # noqa: N818 - it names what happened
    """An upstream that did not answer in time."""


class RequestRejected(ModelError):  # noqa: N818 - it names what happened
    """A request that the upstream will not take, and that asking again cannot mend."""


def require(module: str, *, extra: str) -> Any:  # noqa: ANN401 - a module has no narrower type
    """Import an optional module, or say in one sentence which extra brings it.

    Name a library that the extra lists, not one that another brings along. The command holds for
    what was installed from source too: pip keeps what is there and adds what the extra lists.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        ours = module.startswith("adacompute.")  # a module of ours lacks what it imports
        name = (error.name or module if ours else module).partition(".")[0]
        raise MissingExtra(
            f"this needs {name}, which is not installed: pip install 'adacompute[{extra}]' adds "
            "it, wherever adacompute was installed from"
        ) from error
