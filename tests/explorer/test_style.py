"""Readable colours by WCAG: small text has a contrast of at least 4.5 to its background."""

from __future__ import annotations

import re

import pytest

from floeplan.explorer.site import ROOT

pytestmark = pytest.mark.unit

TEXTS = ("ink", "soft", "faint", "accent", "good", "warn", "bad")
GROUNDS = ("paper", "ground", "well")
PAIRS = [(text, ground) for text in TEXTS for ground in GROUNDS]
PAIRS += [("accent", "accent-soft"), ("good", "good-soft"), ("warn", "warn-soft"), ("bad", "bad-soft")]
PAIRS += [("on-accent", "accent")]


def schemes() -> dict[str, dict[str, str]]:
    """The variables of each colour scheme, by its selector."""
    found = re.findall(r"(:root[^\s{]*)\s*\{([^}]*--ground[^}]*)\}", (ROOT / "style.css").read_text())
    return {name: dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]{6})", block)) for name, block in found}


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_there_is_one_light_scheme_and_two_equal_dark_ones() -> None:
    light, chosen, system = schemes().values()
    assert chosen == system
    assert light.keys() == chosen.keys()
    assert luminance(light["paper"]) > 0.9 > 0.1 > luminance(chosen["paper"])


@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_can_be_read_in_every_scheme(text: str, ground: str) -> None:
    for name, colours in schemes().items():
        assert contrast(colours[text], colours[ground]) >= 4.5, name


def test_specs_stand_out_from_the_paper_and_from_what_is_ruled_out() -> None:
    for colours in schemes().values():
        for number in range(8):
            assert contrast(colours[f"spec-{number}"], colours["paper"]) >= 2.5
            assert contrast(colours[f"spec-{number}"], colours["dead"]) >= 2
