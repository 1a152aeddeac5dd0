"""How ``make test`` runs tests side by side: those that share a lab or a stack stay on one worker."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("a group")
def test_a_group_of_tests_is_known_to_xdist(request: pytest.FixtureRequest) -> None:
    """Not with every pair of versions: then each worker builds a lab of its own, and they disturb each other."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("only side by side: -n 3 --dist loadgroup")
    assert request.node.nodeid.endswith("@a group")
