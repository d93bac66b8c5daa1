"""Errors: every failure that a caller can expect, in one tree.

AdaComputeError
├── ConfigError        an option or configuration file that cannot be used   (ValueError)
├── DataError          samples, questions or tables that cannot be used      (ValueError)
│   └── BundleError    a policy bundle that cannot be loaded or does not fit
├── InfeasibleBudget   a budget below the cost of the cheapest levels        (ValueError)
├── NotFittedError     an estimator that is used before fit                  (ValueError)
├── MissingExtra       an optional dependency that is not installed          (ImportError)
├── GraderError        a user-defined grader that failed
└── ModelError         an upstream that failed; our message contains its own
    ├── RateLimited    it still asked to slow down after the last attempt
    ├── ModelTimeout   it did not answer in time
    └── RequestRejected it rejects this request; retrying does not help

Every error takes one message and no other argument, so that it can be pickled between processes. A
message says what is wrong, the value, the bound and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class AdaComputeError(Exception):
    """Any expected failure; a command prints it as one sentence and exits with 1.

    A ConfigError exits with 2.
    """


class ConfigError(AdaComputeError, ValueError):
    """An option or a configuration file that cannot be used."""


class DataError(AdaComputeError, ValueError):
    """Samples, questions or a table that cannot be used."""


class BundleError(DataError):
    """A policy bundle that cannot be loaded, or that does not fit the task it is used for."""


class InfeasibleBudget(AdaComputeError, ValueError):  # noqa: N818 - it names the state, not a fault
    """A budget below the cost of the cheapest levels, or below the minimum of a policy."""


class NotFittedError(AdaComputeError, ValueError, AttributeError):
    """An estimator that is used before it is fitted, like scikit-learn's error of this name."""


class MissingExtra(AdaComputeError, ImportError):  # noqa: N818 - it names what is missing
    """An optional dependency that is needed and not installed."""


class GraderError(AdaComputeError):
    """A user-defined grader that failed or violated its protocol."""


class ModelError(AdaComputeError):
    """An upstream that failed after all retries that make sense.

    ``advice`` is the end of the message that says what an operator can do.
    """

    advice: str = ""

    @property
    def without_advice(self) -> str:
        """The message for clients of a gateway, who can do nothing about its upstream."""
        return str(self).removesuffix(self.advice)


class RateLimited(ModelError):  # noqa: N818 - it names the state, not a fault
    """An upstream that still asked to slow down after the last attempt.

    ``retry_after_s`` is how long it asked to wait; 0 if it did not say.
    """

    retry_after_s: float = 0.0


class ModelTimeout(ModelError):  # noqa: N818 - it names what happened
    """An upstream that did not answer in time."""


class RequestRejected(ModelError):  # noqa: N818 - it names what happened
    """A request that the upstream rejects and that retrying cannot fix."""


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Raise MissingExtra, with the pip command that installs the extra, if an import fails.

    Import libraries that the extra itself lists before those that come with them.
    """
    try:
        yield
    except ImportError as error:
        raise _missing_extra(error.name or "a library", extra) from error


def check_installed(*modules: str, extra: str) -> None:
    """Raise MissingExtra if one of these modules is not installed; imports none of them."""
    for module in modules:
        if find_spec(module) is None:
            raise _missing_extra(module, extra)


def _missing_extra(module: str, extra: str) -> MissingExtra:
    return MissingExtra(
        f"this needs {module.partition('.')[0]}, which is not installed: run pip install "
        f"'adacompute[{extra}]' (also if adacompute was installed from source)"
    )
