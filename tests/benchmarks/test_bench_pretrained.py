"""The benchmark of pretrained weights: every variant is trained and judged on the images whose labels are hidden."""

from benchmarks.pretrained import VARIANTS, bench_pretrained
from few_photos import save_photos
from npmatch.config.tree import make_config

TINY = {"training.batch": 2, "training.unlabeled_ratio": 1, "backbone.input_size": 32}


def test_every_variant_is_judged(tmp_path):
    photos = save_photos(tmp_path / "photos", size=(36, 36), labels=6, unlabeled=0, test=0)
    variants = {"pretrained": TINY, "from scratch": {"backbone.pretrained": False, **TINY}}
    result = bench_pretrained(photos, labels=4, steps=2, device="cpu", variants=variants)
    assert [row["variant"] for row in result.rows] == list(variants)
    assert all(0 <= row["error"] <= 100 for row in result.rows)


def test_the_variants_are_valid_settings():
    for settings in VARIANTS.values():
        assert settings.items() <= make_config({}, settings).flat().items()
