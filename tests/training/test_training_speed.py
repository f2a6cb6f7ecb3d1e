"""A compiled step against the same step run eagerly."""

import pytest
import torch

from benchmarks.synthetic import make_train_step, synthetic_dataset, variant_config

STEPS = 20
SETTINGS = {
    "training.batch": 16,
    "training.unlabeled_ratio": 4,
    "training.iterations": 1000,
    "training.precision": "float32",
    "training.learning_rate": 0.003,
}


def losses(name: str, compiled: bool) -> dict[str, torch.Tensor]:
    """The logged values of each of the first steps."""
    config = variant_config("digits-40", name, {}, {**SETTINGS, "training.compile": compiled})
    run = make_train_step(config, synthetic_dataset(config), torch.device("cuda"))
    logs = []
    for _ in range(STEPS):
        run()
        logs.append(run.trainer.meter.read())
    return {key: torch.tensor([log[key] for log in logs]) for key in ("loss", "loss_labeled", "gradient_norm")}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["npmatch", "fixmatch"])
def test_compiled_and_eager_steps_agree(name):
    # The same draws and the same arithmetic but for the order of sums: 3 % over twenty steps in float32 (TF32 in
    # convolutions). The total loss may also differ by an image or two of 64 that crosses a threshold.
    eager, compiled = losses(name, False), losses(name, True)
    torch.testing.assert_close(compiled["loss_labeled"], eager["loss_labeled"], rtol=0.03, atol=0.01)
    torch.testing.assert_close(compiled["loss"], eager["loss"], rtol=0.05, atol=0.05)
    assert eager["loss_labeled"].std() > 0.01, "twenty equal losses would agree whatever was compiled"
