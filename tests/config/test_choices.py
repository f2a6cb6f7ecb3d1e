"""Settings that are not given follow from the images; given ones win, and a resumed run keeps what was chosen."""

import json
import math

import pytest

import npmatch
from few_photos import save_photo, save_photos
from npmatch.cli import main
from npmatch.config.choices import cached_pretrained, facts_of_listing, make_choices
from npmatch.config.resolve import resolve_config
from npmatch.config.tree import make_config, read_config_file
from npmatch.data.check import list_data
from npmatch.data.sources.listing import ListedFile, Listing
from npmatch.errors import NPMatchError
from npmatch.training import pace
from tiny import TINY

SHORT = {key: value for key, value in TINY.items() if key not in ("training.iterations", "algorithm.max_entropy")} | {
    "data.image_size": 8,
    "backbone.name": "cnn",
    "augment.padding": 1,
}


def photos_of(side, root):
    return save_photos(root / str(side), size=(side + 20, side), unlabeled=20)


@pytest.fixture
def photos(tmp_path):
    return photos_of(40, tmp_path)


def chosen(listing, on_cuda=False, **given):
    given = {key.replace("__", "."): value for key, value in given.items()}
    return {choice.key: choice.value for choice in make_choices(facts_of_listing(listing), given, on_cuda)}


def listing_of(classes, labels=8, unlabeled=1000, test=10):
    files = [ListedFile(f"labeled/{name}/{i}.jpg", "labeled", name) for name in classes for i in range(labels)]
    files += [ListedFile(f"unlabeled/{i}.jpg", "unlabeled") for i in range(unlabeled)]
    files += [ListedFile(f"test/{name}/{i}.jpg", "test", name) for name in classes for i in range(test)]
    return Listing(root="nowhere", classes=list(classes), files=files)


@pytest.mark.parametrize(("side", "size"), [(8, 8), (10, 10), (16, 16), (28, 28), (47, 47), (300, 48)])
def test_images_of_one_size_keep_it_up_to_a_limit(tmp_path, side, size, monkeypatch):
    monkeypatch.setattr("npmatch.config.choices.cached_pretrained", lambda on_cuda: None)
    listing = list_data(photos_of(side, tmp_path))
    assert facts_of_listing(listing).side == side
    assert chosen(listing)["data.image_size"] == size


@pytest.mark.parametrize(("side", "size"), [(10, 8), (28, 24), (40, 32), (47, 32), (300, 48)])
def test_images_of_several_sizes_get_the_usual_one_below_and_are_not_enlarged(tmp_path, side, size, monkeypatch):
    monkeypatch.setattr("npmatch.config.choices.cached_pretrained", lambda on_cuda: None)
    photos = photos_of(side, tmp_path)
    save_photo(photos / "unlabeled" / "larger.png", size=(side + 9, side + 1))
    assert facts_of_listing(list_data(photos)).side == side
    assert chosen(list_data(photos))["data.image_size"] == size


def test_broken_files_do_not_matter(photos):
    for i in range(5):
        (photos / f"unlabeled/{i}.png").write_bytes(b"no picture")
    assert facts_of_listing(list_data(photos)).side == 40


def test_thresholds_follow_the_number_of_classes():
    ten, thousand = (chosen(listing_of([f"c{i}" for i in range(k)], 4, 10)) for k in (10, 1000))
    assert ten["algorithm.max_entropy"] == 1.2, "as measured on digits and Fashion-MNIST"
    assert "algorithm.confidence" not in ten
    assert thousand["algorithm.max_entropy"] == 1.2, "the paper's for ImageNet"
    assert thousand["algorithm.confidence"] == pytest.approx(0.7), "the paper's for ImageNet"
    two = chosen(listing_of("ab"))
    assert two["algorithm.max_entropy"] == pytest.approx(1.2 * math.log(2) / math.log(10), abs=1e-3)
    hundred = chosen(listing_of([f"c{i}" for i in range(100)], 4, 10))
    assert "algorithm.confidence" not in hundred


def test_an_algorithm_gets_only_keys_it_has():
    assert chosen(listing_of("ab"))["training.clip"] == 1
    keys = chosen(listing_of("ab"), algorithm__name="fixmatch")
    assert not [key for key in keys if key.startswith("algorithm.")]
    assert "training.clip" not in keys
    assert make_config({**keys, "algorithm.name": "fixmatch"}).name == "fixmatch"


def test_characters_are_not_mirrored():
    assert chosen(listing_of("0123456789"))["augment.policy"] == "digits"
    assert chosen(listing_of(["cat", "dog"]))["augment.policy"] == "natural"


def test_alignment_where_classes_are_balanced():
    listing = listing_of(["cat", "dog"])
    assert chosen(listing)["algorithm.alignment"] is True
    listing.files = [file for file in listing.files if not file.name.startswith("labeled/cat") or "0" in file.name]
    assert chosen(listing)["algorithm.alignment"] is False


def test_batches_of_tiny_sets():
    assert chosen(listing_of("ab", labels=3))["training.batch"] == 8
    assert chosen(listing_of("ab", labels=6))["training.batch"] == 16
    assert chosen(listing_of("ab", labels=500))["training.batch"] == 32
    assert chosen(listing_of("ab", labels=500, unlabeled=0))["training.unlabeled_ratio"] == 4
    assert chosen(listing_of("ab", labels=8, unlabeled=5))["training.unlabeled_ratio"] == 1


def test_labels_are_held_out_where_there_is_no_test_and_there_are_enough():
    assert chosen(listing_of("ab", labels=10, test=0))["data.validation"] == 0.2
    assert "data.validation" not in chosen(listing_of("ab", labels=9, test=0))
    assert "data.validation" not in chosen(listing_of("ab", labels=10, test=1))


def test_a_gpu_gets_the_literatures_networks(photos):
    on_gpu = chosen(list_data(photos), on_cuda=True)
    assert (on_gpu["backbone.name"], on_gpu["training.batch"]) == ("wrn-28-2", 8)
    assert chosen(listing_of("ab", labels=500), on_cuda=True)["training.batch"] == 64


def test_pretrained_weights_are_used_if_they_are_in_the_cache(tmp_path, monkeypatch):
    cache = tmp_path / "hub"
    assert cached_pretrained(False, str(cache)) is None
    model = cache / "models--timm--resnet18.tv_in1k"
    (model / "refs").mkdir(parents=True)
    (model / "refs/main").write_text("abc")
    (model / "snapshots/abc").mkdir(parents=True)
    (model / "snapshots/abc/model.safetensors").touch()
    assert cached_pretrained(False, str(cache)) == "resnet18.tv_in1k"
    monkeypatch.setattr("npmatch.config.choices.cached_pretrained", lambda on_cuda: "resnet18.tv_in1k")
    large, small = (chosen(list_data(photos_of(side, tmp_path))) for side in (200, 40))
    assert large["backbone.name"] == "timm:resnet18.tv_in1k"
    assert large["backbone.pretrained"] is True
    assert large["data.image_size"] == 96
    assert small["backbone.name"] == "cnn"


def test_explicit_settings_win_and_the_others_follow_them(photos, tmp_path):
    config = resolve_config(data=photos, overrides={"data.image_size": "12", "algorithm.max_entropy": "0.3"})
    assert (config.data.image_size, config.algorithm.max_entropy) == (12, 0.3)
    assert (config.augment.padding, config.augment.operations) == (1, 1)
    config = resolve_config(data=photos, overrides={"backbone.name": "wrn-28-2"})
    assert (config.backbone.width, config.backbone.stem_stride) == (48, 1)
    file = tmp_path / "mine.yaml"
    file.write_text("training:\n  batch: 24\n")
    assert resolve_config(data=photos, config_file=file).training.batch == 24
    assert resolve_config("digits-40").augment.padding == 1, "a recipe is a choice already"


def test_choices_are_printed_stored_and_kept_by_a_resumed_run(photos, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    words = [f"{key}={value}" for key, value in {**SHORT, "training.iterations": 4}.items()]
    command = ["train", "--data", str(photos), "--out", str(run), "--device", "cpu", *words]
    assert main(command) == 0
    err = capsys.readouterr().err
    assert "algorithm.max_entropy" in err
    assert "K = 2" in err
    assert "data.image_size" not in err, "it was given"
    stored = read_config_file(run / "config.yaml")
    assert stored["algorithm.max_entropy"] == 0.361
    monkeypatch.setattr("npmatch.config.choices.MAX_ENTROPY", 9.0)  # as another version might choose
    assert main([*command, "--resume"]) == 0
    assert "finished already" in capsys.readouterr().err
    assert main([*command, "--resume", "algorithm.max_entropy=0.5"]) == 2


def test_an_average_is_filled_by_the_steps_there_are():
    listing = listing_of("ab")
    assert "training.ema" not in chosen(listing)
    assert "training.ema" not in chosen(listing, training__iterations="1000")
    for steps in (1, 5, 30, 450, 900):
        assert chosen(listing, training__iterations=str(steps))["training.ema"] ** steps < 0.0001
    assert "training.ema" not in chosen(listing, training__iterations=30, training__ema=0.99)
    assert chosen(listing, on_cuda=True)["training.ema"] == 0.999
    assert chosen(listing, on_cuda=True, training__iterations=1000)["training.ema"] == 0.99


def test_minutes_are_filled_and_remembered(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("npmatch.training.pace.steps_within", lambda minutes, trainer, device: round(10 * minutes))
    run = tmp_path / "run"
    words = [f"{key}={value}" for key, value in SHORT.items()]
    command = ["train", "--data", str(photos), "--out", str(run), "--device", "cpu", *words, "--minutes", "1.2"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 2
    stored = read_config_file(run / "config.yaml")
    assert (stored["training.iterations"], stored["training.eval_every"]) == (12, 10)
    assert stored["training.ema"] ** 12 < 0.01  # the random start's share of the averaged weights
    assert [r["step"] for r in npmatch.fit(out=run, resume=True, quiet=True).records() if r["kind"] == "final"] == [12]
    assert main([*command, "--resume"]) == 0
    assert "finished already" in capsys.readouterr().err


def test_minutes_with_a_recipe_shorten_intervals_longer_than_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("npmatch.training.pace.steps_within", lambda minutes, trainer, device: 20)
    words = {key: value for key, value in TINY.items() if not key.endswith(("iterations", "_every"))}
    run = npmatch.fit("digits-40", out=tmp_path / "run", minutes=1, quiet=True, device="cpu", overrides=words)
    stored = read_config_file(run.folder / "config.yaml")
    assert (stored["training.iterations"], stored["training.eval_every"], stored["training.checkpoint_every"]) == (
        20,
        2,
        2,
    )


def test_measuring_changes_nothing_but_the_number_of_steps(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(pace, "MAX_TIMED_STEPS", 3)
    monkeypatch.setattr(pace, "MEASURED_STEPS", 8)
    real = pace.steps_within
    monkeypatch.setattr(pace, "steps_within", lambda *args: min(5, real(*args)))
    measured = npmatch.fit(data=photos, out=tmp_path / "a", minutes=1, quiet=True, device="cpu", overrides=SHORT)
    stated = {**SHORT, "training.iterations": 5, "training.eval_every": 1, "training.checkpoint_every": 1}
    plain = npmatch.fit(data=photos, out=tmp_path / "b", quiet=True, device="cpu", overrides=stated)
    files = [run.folder / "model.safetensors" for run in (measured, plain)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_minutes_and_iterations_are_not_both(photos, tmp_path):
    for minutes, words, message in [
        (1, {"training.iterations": 5}, "not both"),
        (0, {}, "above 0"),
        (-1, {}, "above 0"),
    ]:
        with pytest.raises(NPMatchError, match=message):
            npmatch.fit(data=photos, out=tmp_path / "run", minutes=minutes, overrides=words)
