from __future__ import annotations

import pickle
import sys

import pytest

from adacompute.core import errors
from adacompute.core.errors import (
    AdaComputeError,
    BundleError,
    ConfigError,
    DataError,
    GraderError,
    InfeasibleBudget,
    MissingExtra,
    ModelError,
    ModelTimeout,
    NotFittedError,
    RateLimited,
    RequestRejected,
    check_installed,
    needs_extra,
)

TREE = {
    AdaComputeError: Exception,
    ConfigError: ValueError,
    DataError: ValueError,
    BundleError: DataError,
    InfeasibleBudget: ValueError,
    NotFittedError: AttributeError,
    MissingExtra: ImportError,
    GraderError: AdaComputeError,
    ModelError: AdaComputeError,
    RateLimited: ModelError,
    ModelTimeout: ModelError,
    RequestRejected: ModelError,
}


def test_the_tree_lists_every_error() -> None:
    found = {
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert found == set(TREE)
    assert errors.__doc__ is not None
    assert all(error.__name__ in errors.__doc__ for error in TREE)


@pytest.mark.parametrize(("error", "parent"), TREE.items())
def test_errors_subclass_ours_and_a_builtin(
    error: type[AdaComputeError], parent: type[Exception]
) -> None:
    assert issubclass(error, AdaComputeError)
    assert issubclass(error, parent)


@pytest.mark.parametrize("error", TREE)
def test_errors_can_be_pickled(error: type[AdaComputeError]) -> None:
    back = pickle.loads(pickle.dumps(error("3 is below 4: raise it")))  # noqa: S301 - our own bytes
    assert type(back) is error
    assert str(back) == "3 is below 4: raise it"


def test_needs_extra_names_the_missing_library_and_the_extra() -> None:
    with (
        pytest.raises(MissingExtra, match=r"no_such.* pip install 'adacompute\[router\]'"),
        needs_extra("router"),
    ):
        import no_such.part  # type: ignore[import-not-found]  # noqa: F401


def test_needs_extra_names_what_a_module_of_ours_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.httptools_impl", None)
    monkeypatch.delitem(sys.modules, "adacompute.gateway.connection.client_protocol", raising=False)
    with (
        pytest.raises(MissingExtra, match=r"uvicorn.* 'adacompute\[serve\]'"),
        needs_extra("serve"),
    ):
        import adacompute.gateway.connection.client_protocol  # noqa: F401


def test_check_installed_names_the_missing_library_and_the_extra() -> None:
    check_installed("json", "csv", extra="router")
    with pytest.raises(MissingExtra, match=r"no_such.* 'adacompute\[router\]'"):
        check_installed("json", "no_such", extra="router")


def test_a_client_of_a_gateway_gets_no_advice_for_operators() -> None:
    error = errors.ModelError("it has no log-probabilities: router another policy")
    assert error.without_advice == str(error)
    error.advice = ": router another policy"
    assert error.without_advice == "it has no log-probabilities"
