"""Settings that are not given follow from the images; given ones win, and a resumed run keeps what was chosen."""

import math

import pytest

from few_photos import save_photo, save_photos
from npmatch.cli import main
from npmatch.config.choices import make_choices
from npmatch.config.facts import DataFacts, facts_of_listing, facts_of_recipe
from npmatch.config.recipes import RECIPES
from npmatch.config.resolve import resolve_config
from npmatch.config.start import LITE
from npmatch.config.tree import make_config, read_config_file
from npmatch.data.check import list_data
from npmatch.data.sources.listing import ListedFile, Listing
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
    monkeypatch.setattr("npmatch.config.start.local_weights", lambda network: None)
    listing = list_data(photos_of(side, tmp_path))
    assert facts_of_listing(listing).side == side
    assert chosen(listing)["data.image_size"] == size


@pytest.mark.parametrize(("side", "size"), [(10, 8), (28, 24), (40, 32), (47, 32), (300, 48)])
def test_images_of_several_sizes_get_the_usual_one_below_and_are_not_enlarged(tmp_path, side, size, monkeypatch):
    monkeypatch.setattr("npmatch.config.start.local_weights", lambda network: None)
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


@pytest.mark.parametrize("process", ["kernel", "attentive"])
def test_processes_that_predict_from_a_context_get_a_looser_gate(process):
    ten, two = (chosen(listing_of(names), algorithm__process=process) for names in ("abcdefghij", "ab"))
    assert ten["algorithm.max_entropy"] == pytest.approx(2, abs=0.01), "as measured on Fashion-MNIST and EuroSAT"
    assert two["algorithm.max_entropy"] == pytest.approx(0.6, abs=0.01)
    assert chosen(listing_of("abcdefghij"), algorithm__process="paper")["algorithm.max_entropy"] == 1.2


def test_an_algorithm_gets_only_keys_it_has():
    assert chosen(listing_of("ab"))["training.clip"] == 1
    keys = chosen(listing_of("ab"), algorithm__name="fixmatch")
    assert not [key for key in keys if key.startswith("algorithm.")]
    assert "training.clip" not in keys
    assert make_config({**keys, "algorithm.name": "fixmatch"}).name == "fixmatch"


def test_characters_are_not_mirrored():
    assert chosen(listing_of("0123456789"))["augment.policy"] == "digits"
    assert chosen(listing_of(["cat", "dog"]))["augment.policy"] == "natural"


@pytest.mark.parametrize("algorithm", ["npmatch", "fixmatch", "flexmatch", "supervised"])
def test_logits_are_adjusted_where_labels_are_uneven(algorithm):
    listing = listing_of("ab", labels=4)
    listing.files += [ListedFile(f"labeled/a/more{i}.jpg", "labeled", "a") for i in range(4)]
    assert "algorithm.adjustment" not in chosen(listing, algorithm__name=algorithm), "twice as many are balanced"
    listing.files += [ListedFile("labeled/a/last.jpg", "labeled", "a")]
    choices = make_choices(facts_of_listing(listing), {"algorithm.name": algorithm})
    (adjustment,) = [choice for choice in choices if choice.key == "algorithm.adjustment"]
    assert adjustment.value == 1.0
    assert "4 to 9 labels per class" in adjustment.reason
    assert "algorithm.adjustment" not in chosen(listing, algorithm__name="mixmatch"), "it has no such setting"
    assert "algorithm.adjustment" not in chosen(listing, algorithm__name=algorithm, algorithm__adjustment=0)


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


def test_a_gpu_gets_the_literatures_networks(photos, monkeypatch):
    monkeypatch.setattr("npmatch.config.start.local_weights", lambda network: None)
    on_gpu = chosen(list_data(photos), on_cuda=True)
    assert (on_gpu["backbone.name"], on_gpu["training.batch"]) == ("wrn-28-2", 8)
    assert chosen(listing_of("ab", labels=500), on_cuda=True)["training.batch"] == 64


@pytest.mark.parametrize("on_cuda", [False, True])
def test_photographs_start_from_the_installed_weights(tmp_path, on_cuda):
    large, small, tiny = (chosen(list_data(photos_of(side, tmp_path)), on_cuda) for side in (300, 40, 28))
    for photographs in (large, small):
        assert photographs["backbone.name"] in {f"timm:{name}" for name in LITE}
        assert photographs["backbone.pretrained"] is True
        assert ("backbone.frozen_norms" in photographs, "backbone.frozen" in photographs) == (on_cuda, not on_cuda)
        assert photographs["algorithm.weak_norm"] == "running"
        assert photographs["training.clip"] == 1
        steps, decay = photographs["training.iterations"], photographs.get("training.ema", 0.99)
        assert decay**steps < 0.001, "the average must forget the first weights"
    assert large["data.image_size"] == (224 if on_cuda else 160)
    assert "backbone.input_size" not in large
    assert (small["data.image_size"], small["backbone.input_size"]) == (40, 192 if on_cuda else 160)
    assert tiny["backbone.pretrained"] is False


def test_coarse_photographs_are_enlarged_more_and_most_where_there_is_a_gpu():
    def seen(side, on_cuda, given=()):
        facts = DataFacts(("a", "b"), [20, 20], 5000, side)
        keys = {choice.key: choice.value for choice in make_choices(facts, dict(given), on_cuda)}
        return keys.get("backbone.input_size"), keys["training.unlabeled_ratio"]

    assert seen(32, True) == (192, 4)
    assert seen(64, True) == (128, 7)
    assert seen(32, False) == (160, 7), "a frozen network sees each image once"
    assert seen(64, False) == (128, 7)
    assert seen(32, True, {"backbone.input_size": 96}) == (None, 7), "what was given decides"
    assert seen(200, True) == (None, 4)


def test_the_reason_names_the_package_and_what_a_download_would_bring(photos):
    choices = make_choices(facts_of_listing(list_data(photos)), {}, on_cuda=True)
    (reason,) = (choice.reason for choice in choices if choice.key == "backbone.name")
    assert "efficientnet_lite" in reason
    assert "backbone.name=timm:vit_small_patch14_dinov2.lvd142m backbone.pretrained=true" in reason


def test_pretrained_can_be_refused_asked_for_and_left_to_the_machine(photos, monkeypatch):
    listing = list_data(photos)
    assert chosen(listing, backbone__pretrained="false")["backbone.name"] == "cnn"
    assert chosen(listing, backbone__pretrained="auto")["backbone.pretrained"] is True
    assert chosen(listing_of("ab"), backbone__pretrained="true")["backbone.name"] == f"timm:{LITE[0]}", "of any size"
    named = chosen(listing, backbone__name="timm:tf_efficientnet_lite0")
    assert named["backbone.pretrained"] is True
    assert "backbone.name" not in named
    assert "backbone.pretrained" not in chosen(listing, backbone__name="timm:resnet26d"), "no weights of it are here"
    assert "backbone.frozen" not in chosen(listing, backbone__name="wrn-28-2")
    assert chosen(listing, backbone__name="wrn-28-2", backbone__weights="w.pt")["backbone.frozen"] is True


@pytest.mark.parametrize("word", ["true", "1", "yes", "on", True])
def test_pretrained_asked_for_in_any_word_does_not_need_weights_on_this_machine(photos, monkeypatch, word):
    monkeypatch.setattr("npmatch.config.start.local_weights", lambda network: None)
    assert chosen(list_data(photos), backbone__pretrained=word)["backbone.name"] == f"timm:{LITE[0]}"


def test_a_network_is_frozen_or_not_as_given(photos):
    whole = chosen(list_data(photos), backbone__frozen="false")
    assert "backbone.frozen" not in whole
    assert whole["backbone.frozen_norms"] is True
    frozen = chosen(list_data(photos), on_cuda=True, backbone__frozen="true")
    assert "backbone.frozen_norms" not in frozen


def facts_with(labels=(4,) * 10, images=5000):
    return DataFacts([f"class {k}" for k in range(len(labels))], labels, images, side=64)


@pytest.mark.parametrize(("images", "each"), [(50_000, 20), (5000, 20), (2499, 9), (250, 1), (240, None)])
def test_clusters_label_a_part_of_an_average_class_on_a_frozen_network(images, each):
    keys = {choice.key: choice.value for choice in make_choices(facts_with(images=images), {})}
    assert keys.get("training.cluster_labels") == each


@pytest.mark.parametrize(
    ("facts", "given", "on_cuda"),
    [
        (facts_with(), {}, True),
        (facts_with(), {"backbone.frozen": False}, False),
        (facts_with(), {"backbone.pretrained": "false"}, False),
        (facts_with(), {"algorithm.name": "supervised"}, False),
        (facts_with(), {"training.cluster_labels": 0}, False),
        (facts_with(labels=(4, 4, 9)), {}, False),
        (facts_with(labels=()), {}, False),
    ],
    ids=["GPU", "whole network", "from scratch", "supervised", "refused", "uneven", "no labels"],
)
def test_clusters_label_nothing_otherwise(facts, given, on_cuda):
    assert "training.cluster_labels" not in {choice.key for choice in make_choices(facts, given, on_cuda)}


def test_transformers_get_adamw_and_layer_decay(photos):
    given = {"backbone__name": "timm:vit_tiny_patch16_224", "backbone__pretrained": "true"}
    keys = chosen(list_data(photos), on_cuda=True, **given)
    assert (keys["training.optimizer"], keys["training.layer_decay"]) == ("adamw", 0.75)
    assert "backbone.frozen_norms" not in keys
    assert "training.optimizer" not in chosen(list_data(photos), **given), "the layer on a frozen one is trained by SGD"


def test_a_network_that_is_chosen_and_starts_from_scratch_is_trained_by_muon(photos):
    for on_cuda in (False, True):
        assert chosen(listing_of("ab"), on_cuda=on_cuda)["training.optimizer"] == "muon"
        assert "training.optimizer" not in chosen(list_data(photos), on_cuda=on_cuda), "learnt features"
        assert "training.optimizer" not in chosen(listing_of("ab"), on_cuda=on_cuda, backbone__name="mine:Net")
    assert "training.optimizer" not in chosen(listing_of("ab"), training__optimizer="sgd"), "what was given decides"


def test_a_recipe_can_start_from_pretrained_weights():
    from_scratch = resolve_config("cifar10-40")
    assert from_scratch.backbone.pretrained is False
    config = resolve_config("cifar10-40", overrides=["backbone.pretrained=auto"], device="cpu")
    assert (config.backbone.name, config.backbone.input_size) == (f"timm:{LITE[0]}", 160)
    assert config.algorithm.weak_norm == "running"
    assert config.data == from_scratch.data
    assert config.augment == from_scratch.augment


def test_every_recipe_knows_its_data():
    for recipe in RECIPES.values():
        facts = facts_of_recipe(recipe)
        assert sum(facts.labels) == recipe.settings.get("data.labels", sum(facts.labels))
        assert len(facts.labels) == recipe.classes
        if "data.labels_head" in recipe.settings:
            assert facts.labels[0] == recipe.settings["data.labels_head"]


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


@pytest.mark.parametrize(("side", "radius"), [(8, 1.5), (16, 3.0), (32, None), (40, None)])  # 6 · side / 32
def test_vats_radius_is_smaller_for_small_images(tmp_path, side, radius):
    listing, vat = list_data(photos_of(side, tmp_path)), {"algorithm__name": "vat", "backbone__pretrained": False}
    assert chosen(listing, **vat).get("algorithm.radius") == radius
    assert chosen(listing, **{**vat, "algorithm__name": "fixmatch"}).get("algorithm.radius") is None


def test_a_frozen_network_keeps_vats_radius(tmp_path):
    listing, vat = list_data(photos_of(40, tmp_path)), {"algorithm__name": "vat", "data__image_size": 16}
    vat["backbone__pretrained"] = True
    assert "algorithm.radius" not in chosen(listing, **vat)
    assert chosen(listing, **vat, backbone__frozen=False)["algorithm.radius"] == 3.0
