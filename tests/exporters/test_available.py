"""What is read of collectors without importing them is what they register."""

from __future__ import annotations

from exporters import available, registry
from exporters.settings import Settings


def test_every_file_registers_under_its_own_name_on_or_off_as_its_text_says() -> None:
    names = list(available.collectors())
    registry.build(Settings(), names)
    assert names == sorted(registry.FACTORIES)
    off = {name for name, about in available.collectors().items() if not about.default}
    assert off == registry.OPT_IN
    assert registry.build(Settings()).names == [name for name in names if name not in registry.OPT_IN]


def test_every_collector_says_in_one_line_what_it_does() -> None:
    for name, about in available.collectors().items():
        assert 20 < len(about.summary) < 200, name
        assert "collector:" not in about.summary


def test_a_file_is_read_for_its_summary_and_for_whether_it_is_on() -> None:
    text = '"""Fans collector: reads\neach fan, from ``/sys``. More.\n"""\n\nregister("fans", Fans{})\n'
    assert available._about(text.format("")) == available.About("Reads each fan, from /sys", True)
    assert available._about(text.format(", default=False")).default is False
    assert available._about("x = 1\n") == available.About("", True)


def test_names_are_chosen_by_their_defaults_and_by_what_was_turned() -> None:
    every, off = available.collectors(), registry.OPT_IN
    on = [name for name in every if name not in off]
    assert available.chosen({}) == on
    assert available.chosen({"engine": False}) == [name for name in on if name != "engine"]
    assert available.chosen({"engine": True}, defaults=False) == ["engine"]
    assert available.chosen({}, defaults=False) == []


def test_a_wrong_name_is_answered_with_the_right_ones() -> None:
    assert available.unknown(["engine"]) is None
    said = available.unknown(["engin"])
    assert (
        said
        == f"there is no collector engin; did you mean engine? collectors: {', '.join(available.collectors())}"
    )
