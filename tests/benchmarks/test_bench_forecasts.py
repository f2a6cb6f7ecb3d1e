"""The benchmark of forecasts: a case compares what was expected with what having the labels gives."""

import torch

from benchmarks.forecasts import CASES, features_of, head_error, try_forecast
from npmatch.training import save_tensors


def test_a_case_is_judged_by_images_that_get_no_label(tmp_path):
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(3).repeat(60)
    f = torch.randn(3, 32, generator=generator)[y] + 1.5 * torch.randn(len(y), 32, generator=generator)
    save_tensors(tmp_path / "made-up.safetensors", {"features": f, "labels": y})
    f, y = features_of("made-up", torch.device("cpu"), tmp_path)
    row = try_forecast(f, y, 4, 2, seed=0)
    assert row["labels"] == "12 → 24"
    assert row["low"] <= row["expected"] <= row["high"]
    assert row["inside"] == (row["low"] <= row["later"] <= row["high"])
    assert head_error(f, y, torch.arange(90), torch.arange(90)) == 0
    assert {times for _, times in CASES} == {2, 4}
