"""The benchmark of --minutes: a whole command, whose phases add up to its time."""

import pytest

from benchmarks.minutes import bench_minutes, make_folder
from npmatch.data.check import list_data
from npmatch.data.check.check import check_data


def test_the_phases_add_up_to_the_whole_command(tmp_path):
    settings = ["backbone.name=cnn", "backbone.width=4", "backbone.pretrained=false", "algorithm.weak_norm=own"]
    result = bench_minutes(0.05, 300, 16, None, "cpu", settings)
    seconds = {row["phase"]: row["seconds"] for row in result.rows}
    whole = seconds.pop("in all")
    assert sum(seconds.values()) == pytest.approx(whole)
    assert min(seconds.values()) >= 0
    assert result.ratios["whole command / minutes given"] == pytest.approx(whole / 3)


def test_the_folder_has_nothing_to_leave_out(tmp_path):
    report = check_data(list_data(make_folder(tmp_path / "photos", 300, 16)), workers=0)
    assert report.images == {"labeled": 40, "unlabeled": 230, "test": 30}
    assert not report.faults
    assert not report.quarantine
    assert not report.names("near-leak")
