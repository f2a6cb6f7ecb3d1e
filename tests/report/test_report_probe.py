"""The probe on a run's page: measured or estimated, with a warning where training has not beaten it."""

import pytest
from made_up_run import Page, make_record, page_of

from npmatch.report import write_report
from npmatch.report.probe import Probe, read_probe


def shown(tmp_path, **final) -> list[str]:
    """The text of the headline of a made-up run whose final record holds `final`."""
    record = make_record()
    record.records.append({"kind": "final", "step": 100, "error": record.scores.error, **final})
    path = write_report(page_of(record), tmp_path / "report.html")
    return Page(path.read_text(encoding="utf-8")).text["headline"]


def test_a_run_without_a_probe_shows_none(tmp_path):
    assert not {"Linear probe", "Warning:"} & set(shown(tmp_path))


def test_a_probe_that_is_beaten_stands_beside_the_error(tmp_path):
    text = shown(tmp_path, probe_error=99.0)
    assert text[text.index("Linear probe") + 1] == "99.0 %"
    assert text.index("Linear probe") == text.index("Error") + 3  # a tile has a name, a number and a meaning
    assert "Warning:" not in text


def test_a_probe_that_is_not_beaten_is_a_warning(tmp_path):
    error = make_record().scores.error
    text = " ".join(shown(tmp_path, probe_error=error - 0.1))
    assert f"training has not beaten a linear probe on the pretrained features: {error:.1f} % error, the probe" in text


def test_an_estimate_is_marked_as_one(tmp_path):
    text = shown(tmp_path, probe_error_estimated=99.0)
    assert text[text.index("Linear probe") + 1] == "about 99.0 %"
    assert "estimated out of fold from the labels" in text[text.index("Linear probe") + 2]


@pytest.mark.parametrize(
    ("final", "probe"),
    [
        ({}, None),
        ({"probe_error": None}, None),
        ({"probe_error": float("nan"), "probe_error_estimated": 3}, Probe(3.0, is_estimated=True)),
        ({"probe_error": 0.0}, Probe(0.0)),
    ],
)
def test_a_record_may_hold_anything(final, probe):
    assert read_probe(final) == probe


def test_an_equal_error_does_not_beat_the_probe_and_an_unknown_one_says_nothing():
    assert Probe(20.0).warning(20.0) is not None
    assert Probe(20.0).warning(19.9) is None
    assert Probe(20.0).warning(None) is None
