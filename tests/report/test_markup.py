"""Escaping, and how numbers are written."""

from __future__ import annotations

import math

import pytest

from flowalign.report.markup import duration, element, number, percent, plural, score, signed, text


def test_text_is_escaped() -> None:
    assert text("<script>alert('1')</script>") == (
        "&lt;script&gt;alert(&#x27;1&#x27;)&lt;/script&gt;"
    )


def test_attributes_are_escaped_and_left_out() -> None:
    made = element("img", alt='"><b>', hidden=True, title=None, class_="x", data_tip=3)
    assert made == '<img alt="&quot;&gt;&lt;b&gt;" hidden class="x" data-tip="3">'
    assert element("p", text("a & b"), hidden=False) == "<p>a &amp; b</p>"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (0.5, "0.5"),
        (0.014159, "0.0142"),
        (2e-5, "2e−5"),
        (-1.25e-7, "−1.25e−7"),
        (1234, "1,234"),
        (12.0, "12"),
        (3.14159, "3.14"),
        (-0.25, "−0.25"),
        (2.5e9, "2.5e9"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_number(value: float, written: str) -> None:
    assert number(value) == written


def test_scores_line_up() -> None:
    assert [score(v) for v in (0.31, 1, 23.456, math.nan)] == ["0.310", "1.000", "23.46", "–"]
    assert [signed(v) for v in (0.142, -0.008, 0.0)] == ["+0.142", "−0.008", "+0.000"]
    assert signed(0.5, scale=21.0) == "+0.50"


def test_percent_duration_plural() -> None:
    shares = " | ".join(percent(v) for v in (0, 0.023, 0.123, 1))
    assert shares.replace("\xa0", " ") == "0 % | 2.3 % | 12 % | 100 %"
    times = " | ".join(duration(v) for v in (42, 512.3, 59 * 60 + 59.7))
    assert times.replace("\xa0", " ") == "42 s | 8 min 32 s | 1 h 0 min"
    assert duration(math.nan) == "–"
    assert [plural(n, "picture") for n in (1, 1200)] == ["1 picture", "1,200 pictures"]
