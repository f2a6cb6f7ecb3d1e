"""What only a CUDA device can show: a step that never waits for the host, and a model that moves to the CPU."""

import pytest
import torch

import npmatch
from bad_steps import train_poisoned
from few_photos import save_photos
from npmatch.algorithms import ALGORITHMS, NPMatch
from npmatch.algorithms.check import make_algorithm, make_batch
from npmatch.data import load_dataset
from npmatch.runs.folder import RunFolder
from npmatch.training import TrainingConfig, Update, load_tensors
from npmatch.types import Batch
from same_runs import same_run
from tiny import TINY, stop_tiny, train_tiny

PRETRAINED = {
    "training.iterations": 8,
    "training.batch": 8,
    "training.unlabeled_ratio": 2,
    "training.checkpoint_every": 8,
    "training.deterministic": True,
    "training.compile": False,
}
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def on_device(batch: Batch) -> Batch:
    return Batch(*(tuple(v.cuda() for v in part) if isinstance(part, tuple) else part.cuda() for part in batch))


@pytest.mark.parametrize(
    ("name", "config"),
    [(name, None) for name in sorted(ALGORITHMS)]
    + [("npmatch", NPMatch.Config(process=process)) for process in ("attentive", "kernel")]
    + [("npmatch", NPMatch.Config(weak_norm="shared"))],
)
def test_a_step_never_waits_for_the_host(name, config):
    algorithm = make_algorithm(ALGORITHMS[name], config).cuda()
    update = Update(algorithm, TrainingConfig(clip=3.0))
    progress = torch.tensor(0.5, device="cuda")
    batches = [on_device(make_batch(algorithm, seed)) for seed in range(4)]
    update.begin(batches[0].index)  # libraries may synchronise once, while they start
    update.end(algorithm.train_step(batches[0], progress, update))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches[1:]:
            update.begin(batch.index)
            step = algorithm.train_step(batch, progress, update)
            update.ema.update(update.end(step))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(p.isfinite().all() for p in algorithm.parameters())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_trained_on_the_gpu_predicts_alike_on_the_cpu(tmp_path, precision):
    train_tiny(tmp_path / "run", device="cuda", training__precision=precision, training__compile=False)
    pixels = load_dataset("digits").test.images.pixels
    on_cpu = npmatch.load(tmp_path / "run", device="cpu").predict(pixels)
    on_gpu = npmatch.load(tmp_path / "run", device="cuda").predict(pixels)
    torch.testing.assert_close(on_cpu.probs, on_gpu.probs, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize(
    ("compiled", "process", "optimizer"),
    [(False, "paper", "sgd"), (True, "paper", "sgd"), (False, "kernel", "sgd"), (False, "paper", "muon")],
)
def test_captured_and_uncaptured_runs_are_bit_equal(tmp_path, compiled, process, optimizer):
    states = []
    for graph in (True, False):
        run = train_tiny(
            tmp_path / str(graph),
            device="cuda",
            training__graph=graph,
            training__compile=compiled,
            training__iterations=50,
            algorithm__process=process,
            training__optimizer=optimizer,
        )
        states.append(load_tensors(sorted((run.folder / "checkpoints").iterdir())[-1])[0])
    different = [name for name in states[0] if not torch.equal(states[0][name], states[1][name])]
    assert not different


def test_captured_and_uncaptured_runs_from_pretrained_weights_are_bit_equal(tmp_path):
    photos = save_photos(tmp_path / "photos", (40, 36), ("cat", "dog"), labels=4, unlabeled=16, test=4)
    states = []
    for graph in (True, False):
        settings = {**PRETRAINED, "training.graph": graph}
        run = npmatch.fit(data=photos, out=tmp_path / str(graph), device="cuda", overrides=settings)
        states.append(load_tensors(sorted((run.folder / "checkpoints").iterdir())[-1])[0])
    different = [name for name in states[0] if not torch.equal(states[0][name], states[1][name])]
    assert not different


@pytest.mark.parametrize("graph", [True, False])
def test_streamed_and_resident_runs_are_bit_equal(tmp_path, graph):
    states = []
    for resident in ("always", "never"):
        run = train_tiny(
            tmp_path / resident,
            device="cuda",
            data__resident=resident,
            data__workers=2,
            training__graph=graph,
            training__compile=False,
            training__deterministic=True,
        )
        states.append(load_tensors(sorted((run.folder / "checkpoints").iterdir())[-1])[0])
    different = [name for name in states[0] if not torch.equal(states[0][name], states[1][name])]
    assert not different


def test_an_interrupted_run_goes_on(tmp_path):
    stop_tiny(tmp_path / "run", 12, device="cuda", training__compile=False)
    resumed = npmatch.fit(out=tmp_path / "run", device="cuda", resume=True, quiet=True)
    straight = train_tiny(tmp_path / "straight", device="cuda", training__compile=False)
    assert resumed.scores["error"] == pytest.approx(straight.scores["error"], abs=3)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", ["npmatch", "flexmatch", "comatch", "mpl"])
def test_a_bad_step_leaves_no_trace_captured_or_not(tmp_path, name, graph):
    run = train_poisoned(
        tmp_path / "run", {7, 11, 12}, algorithm=name, device="cuda", training__graph=graph, training__compile=False
    )
    lines = {r["step"]: r.get("bad_steps") for r in run.records() if r["kind"] == "train"}
    assert lines == {5: None, 10: 1, 15: 2, 20: None, 24: None}


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", ["npmatch", "comatch", "mpl"])
def test_a_deterministic_run_resumes_to_the_bit(tmp_path, name, graph):
    settings = {"training__deterministic": True, "training__graph": graph, "training__compile": False}
    straight = train_tiny(tmp_path / "straight", algorithm=name, device="cuda", **settings)
    stop_tiny(tmp_path / "run", 12, algorithm=name, device="cuda", **settings)
    resumed = npmatch.fit(out=tmp_path / "run", device="cuda", resume=True, quiet=True)
    assert same_run(straight.folder, resumed.folder)


@pytest.mark.parametrize(("gate", "known"), [("fixed", None), ("freematch", None), ("softmatch", None), ("fixed", 0.8)])
def test_a_captured_gate_of_npmatch_resumes_to_the_bit(tmp_path, gate, known):
    settings = {"training__deterministic": True, "training__graph": True, "training__compile": False}
    settings |= {"algorithm__gate": gate, "algorithm__alignment": "window", "algorithm__fairness_weight": 0.1}
    settings["algorithm__known_share"] = known
    straight = train_tiny(tmp_path / "straight", device="cuda", **settings)
    stop_tiny(tmp_path / "run", 12, device="cuda", **settings)
    resumed = npmatch.fit(out=tmp_path / "run", device="cuda", resume=True, quiet=True)
    assert same_run(straight.folder, resumed.folder)


@pytest.mark.parametrize("ema", [0.5, 0.999])  # the first is kept, the second shortened: the graph is captured again
def test_minutes_are_measured_on_the_trainer_that_is_then_used(tmp_path, ema):
    words = {key: value for key, value in TINY.items() if not key.endswith(("iterations", "_every"))}
    words |= {"training.ema": ema, "training.deterministic": True}
    measured = npmatch.fit(
        "digits-40", out=tmp_path / "measured", minutes=0.005, quiet=True, device="cuda", overrides=words
    )
    config = RunFolder(measured.folder).read_config()
    told = config.flat()
    plain = npmatch.fit(
        "digits-40",
        out=tmp_path / "plain",
        quiet=True,
        device="cuda",
        overrides={key: value for key, value in told.items() if key not in ("recipe", "preset")},
    )
    files = [run.folder / "model.safetensors" for run in (measured, plain)]
    assert files[0].read_bytes() == files[1].read_bytes()
