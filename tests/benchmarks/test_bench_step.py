"""The benchmark of the training step: what is counted, what is compared, what is printed."""

import json

import pytest
import torch
from torch import nn

from benchmarks.command_line import run, show
from benchmarks.flops import step_flops
from benchmarks.result import BenchmarkResult, Column
from benchmarks.step import bench_step, main, step_variants
from benchmarks.synthetic import make_train_step, synthetic_dataset, torch_defaults
from benchmarks.timing import interleaved
from npmatch.backbones import make_backbone
from npmatch.config.resolve import resolve_config
from npmatch.errors import NPMatchError

QUICK = ["training.batch=4", "training.unlabeled_ratio=2", "backbone.width=4"]


def convolution_flops(network: nn.Module, side: int) -> tuple[int, int]:
    """Of one image forwards, by the textbook formula; and of the first convolution alone."""
    counted = []

    def count(layer, inputs, output):
        counted.append(2 * layer.weight.numel() * output.shape[2] * output.shape[3])

    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(count)
    network(torch.zeros(1, 3, side, side))
    return sum(counted), counted[0]


@pytest.mark.parametrize("weak_norm", ["joint", "own"])
def test_the_floor_is_three_passes_of_learnt_views_and_one_of_others(weak_norm):
    config = resolve_config("cifar10-250", overrides=[f"algorithm.weak_norm={weak_norm}"])
    forward, first = convolution_flops(make_backbone(config.backbone, 3), 32)
    learnt = 3 * forward - first  # nobody asks for the gradient of the images
    expected = 960 * learnt if weak_norm == "joint" else 512 * learnt + 448 * forward
    assert step_flops(config, (3, 32, 32), unlabeled=448) == expected


@pytest.mark.parametrize(
    ("words", "images"),
    [
        (["algorithm.name=supervised"], 4),
        (["training.unlabeled_ratio=1000"], 4 + 1437),
        (["algorithm.name=mixmatch"], 12),
    ],
)
def test_only_images_that_a_step_takes_are_counted(words, images, capsys):
    """Not those that μ asks for: a method may want none, and the set may have fewer."""
    result = bench_step("digits-40", [*QUICK, *words], "cpu", rounds=1)
    ours = result.rows[0]
    assert ours["images_per_second"] == pytest.approx(images / ours["milliseconds"] * 1000)
    assert f"4 + {images - 4} random images" in result.about
    counted = [note for note in result.notes if "GFLOP" in note]
    assert len(counted) == (0 if words[0].startswith("algorithm") else 1)  # of passes that are known alone
    assert "weak views" in result.about or not counted
    unequal = [note for note in result.notes if note.startswith("fixmatch's step has 12 images and supervised's 4")]
    assert len(unequal) == ("algorithm.name=supervised" in words)


def test_variants_compute_the_same_and_differ_in_how():
    ours, fixmatch, bf16, tf32, fp32 = step_variants("cifar10-250", ["algorithm.samples=7"], on_cuda=True)
    assert fixmatch.config.name == "fixmatch"
    assert not hasattr(fixmatch.config.algorithm, "samples")
    assert all(variant.config.algorithm == ours.config.algorithm for variant in (bf16, tf32, fp32))
    assert (tf32.config, tf32.tf32, fp32.tf32) == (fp32.config, True, False)
    assert ours.config.algorithm.samples == 7
    assert (fp32.config.training.precision, bf16.config.training.precision) == ("float32", "bfloat16")
    assert ours.config.training.graph is None
    for plain in (fp32.config.training, bf16.config.training):
        assert plain.graph is plain.compile is plain.fused is False


def test_fewer_images_than_the_real_set_has_are_labelled_by_half():
    config = resolve_config("digits-40", overrides=["data.labels=5000", *QUICK])
    train_step = make_train_step(config, synthetic_dataset(config), torch.device("cpu"))
    assert train_step.trainer.stream.labels.bincount().tolist() == 10 * [71]


def test_plain_steps_use_cudnn_and_leave_settings_as_they_were():
    before = [getattr(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "allow_tf32")]
    for tf32 in (True, False):
        with torch_defaults(tf32):
            assert torch.backends.cudnn.enabled
            assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32) == (False, tf32)
    assert [getattr(torch.backends.cudnn, name) for name in ("enabled", "benchmark", "allow_tf32")] == before


def test_words_nobody_knows_are_refused():
    with pytest.raises(NPMatchError, match=r"algorithm\.sample"):
        step_variants("cifar10-250", ["algorithm.sample=7"], on_cuda=True)
    with pytest.raises(NPMatchError, match="source of synthetic images 'folder'"):
        bench_step("digits-40", ["data.source=folder"], "cpu")


def test_a_benchmark_compares_in_one_run(capsys, tmp_path):
    plot = tmp_path / "step.svg"
    options = ["--device", "cpu", "--rounds", "1", "--json", "--plot", str(plot)]
    assert run(main, ["digits-40", *QUICK, *options]) == 0
    out, err = capsys.readouterr()
    result = json.loads(out)
    assert [row["variant"] for row in result["rows"]] == ["npmatch", "fixmatch", "npmatch, eager bfloat16"]
    ms = {row["variant"]: row["milliseconds"] for row in result["rows"]}
    assert result["ratios"]["npmatch / fixmatch"] == pytest.approx(ms["npmatch"] / ms["fixmatch"])
    assert result["rows"][0]["images_per_second"] == pytest.approx(12 / ms["npmatch"] * 1000)
    assert "npmatch: ready after" in err
    assert all(name in plot.read_text() for name in ms)


def test_a_figure_of_an_unknown_kind_is_refused_before_anything_is_measured(capsys):
    assert run(main, ["--plot", "step.jpeg2"]) == 2
    assert "--plot step.jpeg2" in capsys.readouterr().err
    assert run(main, ["--plot", "no-such-folder/step.png"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        "python -m benchmarks.step: --plot no-such-folder/step.png: cannot be written there; "
        "name a file in a folder that exists\n",
    )


def test_a_table_has_no_empty_columns_and_cuts_no_name(capsys):
    columns = [Column("a", "a rather long heading"), Column("b", "of GPUs alone")]
    show(BenchmarkResult("step", "about", columns, [{"a": "x" * 100}, {"a": "y"}]), as_json=False)
    out = capsys.readouterr().out
    assert out.count("x") == 100
    assert "of GPUs" not in out


def test_columns_may_be_in_tables_of_their_own(capsys):
    columns = [Column("name", "name"), Column("x", "x", "{:.1f}", "first"), Column("y", "y", table="second")]
    result = BenchmarkResult(
        "step", "about", columns, [{"name": "a|b", "x": 1.0, "x_std": 0.25}, {"name": "c", "y": 2}]
    )
    assert [result.cells(part) for part in result.tables().values()] == [
        [["a|b", "1.0 ± 0.2"], ["c", ""]],
        [["a|b", ""], ["c", "2"]],
    ]
    show(result, as_json=False)
    assert [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip().isalpha()] == [
        "about",
        "first",
        "second",
    ]
    assert "first:\n\n| name | x |\n| --- | --- |\n| a&#124;b | 1.0 ± 0.2 |\n| c |  |" in result.markdown()


def test_runs_take_turns():
    order = []
    seconds = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, "cpu", rounds=2, burst=1e-9)
    assert seconds.keys() == {"a", "b"}
    assert "".join(order[-4:]) == "abab"
