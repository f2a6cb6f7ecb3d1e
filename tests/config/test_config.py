"""Configuration: layers, types, and errors that name the nearest valid choice."""

import pytest

from npmatch.config.recipes import COLUMNS, RECIPES, recipe_layer
from npmatch.config.resolve import resolve_config
from npmatch.config.tree import differences, flatten, make_config, parse_overrides, read_config_file, write_config
from npmatch.errors import NPMatchError


def test_later_layers_win_and_text_becomes_typed():
    config = make_config({"training.iterations": 5, "algorithm.samples": 3}, {"training.iterations": "200"})
    assert config.training.iterations == 200
    assert config.algorithm.samples == 3
    config = make_config(
        {}, parse_overrides(["algorithm.alignment=true", "algorithm.alpha=none", "augment.crop_scale=0.5,1"])
    )
    assert config.algorithm.alignment is True
    assert config.algorithm.alpha is None
    assert config.augment.crop_scale == (0.5, 1.0)


def test_a_preset_beats_the_recipe_and_loses_to_the_users_words():
    config = make_config(
        {"algorithm.targets": "trusted"}, {"preset": "reference", "algorithm.average": "probabilities"}
    )
    assert config.algorithm.targets == "split"
    assert config.algorithm.decoder_width == "features"
    assert config.algorithm.average == "probabilities"
    assert config.training.schedule == "cosine-63-128"


def test_a_preset_of_all_methods_sets_what_a_method_has():
    fixmatch, mixmatch = (
        make_config({"algorithm.name": name}, {"preset": "fast"}) for name in ("fixmatch", "mixmatch")
    )
    assert fixmatch.algorithm.weak_norm == "shared"
    assert not hasattr(mixmatch.algorithm, "weak_norm")
    assert fixmatch.training == mixmatch.training
    assert mixmatch.training.optimizer == "muon"


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["algorithm.divergance=kl"], "did you mean 'algorithm.divergence'"),
        (["training.iterations=many"], "training.iterations=many: must be a valid integer"),
        (["algorithm.divergence=kll"], "algorithm.divergence=kll: must be 'js', 'js_dual', 'kl' or 'renyi'"),
        (["preset=referense"], "did you mean 'reference'"),
        (["=3"], "key=value"),
        (["algorithm.name=npmach"], "did you mean 'npmatch'"),
        (["algorithm.name=fixmatch", "preset=paper"], "unknown preset 'paper'; choose one of: fast"),
    ],
)
def test_bad_words_give_one_line(tokens, message):
    with pytest.raises(NPMatchError, match=message):
        make_config({}, parse_overrides(tokens))


def test_unknown_recipe_and_nothing_to_train_on():
    with pytest.raises(NPMatchError, match="did you mean 'cifar10-250'"):
        resolve_config("cifar10-251")
    with pytest.raises(NPMatchError, match="name a recipe"):
        resolve_config()


def test_a_configuration_survives_its_file(tmp_path):
    config = resolve_config("imagenet-100k", overrides=["algorithm.alpha=0.25", "seed=7"])
    write_config(config, tmp_path / "config.yaml")
    again = make_config({}, read_config_file(tmp_path / "config.yaml"))
    assert again == config
    other = make_config({}, {**read_config_file(tmp_path / "config.yaml"), "seed": 8})
    assert differences(config, other) == ["seed: 7 → 8"]


SEXAGESIMAL = ":".join(["59"] * 3000)  # YAML reads it as an integer of base 60


@pytest.mark.parametrize(
    "text",
    [
        "- a\n- b\n",
        "a: [1\n",
        "data: &group {labels: 4}\ntraining: *group\n",
        "training: {<<: {batch: 4}, <<: *other}\n",
        "seed: 1\n" * 2**16,
        f"? {SEXAGESIMAL}\n: 1\n",
    ],
    ids=["list", "bracket", "alias", "merge", "long", "key"],
)
def test_a_bad_file_is_named(tmp_path, text):
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(NPMatchError, match=r"bad\.yaml"):
        read_config_file(path)


@pytest.mark.parametrize("levels", ["[{}]", "{{<<: [{}]}}"], ids=["lists", "merge keys"])
def test_a_small_file_cannot_ask_for_gigabytes(tmp_path, levels):
    lines = ["x0: &x0 " + levels.format("{k: 1}")]
    lines += [f"x{n}: &x{n} " + levels.format(",".join([f"*x{n - 1}"] * 10)) for n in range(1, 20)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lines))
    with pytest.raises(NPMatchError, match=r"bomb\.yaml: not valid YAML \(the alias \*x0: write the value out\)"):
        read_config_file(tmp_path / "bomb.yaml")


@pytest.mark.parametrize("value", ["[" + "1," * 10_000 + "1]", SEXAGESIMAL], ids=["list", "number"])
def test_an_error_shows_the_beginning_of_a_long_value(tmp_path, value):
    (tmp_path / "long.yaml").write_text(f"training: {{batch: {value}}}")
    with pytest.raises(NPMatchError, match=r"training\.batch") as problem:
        make_config({}, read_config_file(tmp_path / "long.yaml"))
    assert len(str(problem.value)) < 300


@pytest.mark.parametrize(
    ("word", "accepted"),
    [
        ("algorithm.alignment=batch", ["boolean", "'window'"]),
        ("backbone.pretrained=maybe", ["boolean", "'auto'"]),
        ("algorithm.alpha=half", ["number"]),
    ],
)
def test_an_error_names_every_kind_of_value_that_a_key_takes(word, accepted):
    with pytest.raises(NPMatchError) as problem:
        make_config({}, parse_overrides([word]))
    assert all(kind in str(problem.value) for kind in accepted)
    assert "None" not in str(problem.value)


def test_the_three_values_of_alignment_are_read_from_words_and_files(tmp_path):
    for word, value in (("true", True), ("false", False), ("window", "window")):
        (tmp_path / "file.yaml").write_text(f"algorithm: {{alignment: {word}}}")
        for layer in ({"algorithm.alignment": word}, read_config_file(tmp_path / "file.yaml")):
            read = make_config({}, layer).algorithm.alignment
            assert (type(read), read) == (type(value), value)


def test_recipes_that_limit_the_entropy_do_so_for_every_gate():
    for gate in ("curriculum", "freematch"):
        layer = recipe_layer("digits-40", "npmatch")
        assert make_config(layer, {"algorithm.gate": gate}).algorithm.max_entropy == 1.2
        lifted = make_config(layer, {"algorithm.gate": gate, "algorithm.max_entropy": "none"})
        assert lifted.algorithm.max_entropy == {"curriculum": 0.4, "freematch": None}[gate]
        assert make_config({}, flatten(lifted.nested())) == lifted


def test_flatten_is_the_inverse_of_nested():
    config = make_config({})
    assert make_config({}, flatten(config.nested())) == config


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_is_valid_and_has_the_papers_settings(name):
    config = make_config(recipe_layer(name, "npmatch"))
    assert config.recipe == name
    if name in COLUMNS:
        assert (config.training.batch, config.training.unlabeled_ratio, config.training.learning_rate) == (
            64,
            7,
            0.03,
        )
        assert config.training.iterations == 2**20
        assert str(config.data.labels) == name.split("-")[1]
        assert (config.algorithm.confidence, config.algorithm.max_entropy) == (0.95, 0.4)


def test_what_a_data_set_changes_in_an_algorithm():
    for labels in (40, 250):
        config = make_config(recipe_layer(f"fashion-mnist-{labels}", "npmatch"))
        assert config.data.labels == labels
        assert config.algorithm.alignment is True
    assert make_config(recipe_layer("cifar10-40", "npmatch")).algorithm.alignment is False


@pytest.mark.parametrize(
    ("recipe", "algorithm", "settings"),
    [
        ("cifar10-40", "npmatch", {"backbone.name": "wrn-28-2", "training.weight_decay": 5e-4}),
        ("cifar100-400", "npmatch", {"backbone.name": "wrn-28-8", "training.weight_decay": 1e-3}),
        ("stl10-40", "npmatch", {"backbone.name": "wrn-37-2", "training.weight_decay": 5e-4}),
        ("imagenet-100k", "npmatch", {"backbone.name": "timm:resnet50", "training.weight_decay": 1e-4}),
        ("imagenet-100k", "npmatch", {"training.batch": 256, "training.unlabeled_ratio": 1}),
        ("imagenet-100k", "npmatch", {"training.learning_rate": 0.05, "augment.crop_scale": (0.2, 1.0)}),
        ("cifar10-40", "npmatch", {"algorithm.samples": 10, "algorithm.bank": 2560, "training.ema": 0.999}),
        ("cifar10-40", "npmatch", {"algorithm.divergence_weight": 0.01, "algorithm.unlabeled_weight": 1}),
        ("cifar10-40", "fixmatch", {"algorithm.confidence": 0.95, "algorithm.unlabeled_weight": 1}),
        ("cifar10-40", "flexmatch", {"algorithm.confidence": 0.95, "training.unlabeled_ratio": 7}),
        (
            "cifar10-40",
            "uda",
            {"algorithm.temperature": 0.4, "algorithm.confidence": 0.8, "algorithm.annealing": "off"},
        ),
        ("cifar10-40", "mixmatch", {"algorithm.temperature": 0.5, "algorithm.mixup": 0.5, "algorithm.ramp": 0.4}),
        ("cifar10-40", "mixmatch", {"algorithm.unlabeled_weight": 100, "training.unlabeled_ratio": 1}),
        ("cifar10-40", "remixmatch", {"algorithm.temperature": 0.5, "algorithm.mixup": 0.75, "algorithm.ramp": 1 / 64}),
        ("cifar10-40", "remixmatch", {"algorithm.unlabeled_weight": 1.5, "training.unlabeled_ratio": 1}),
        ("cifar10-40", "remixmatch", {"algorithm.strong_weight": 0.5, "algorithm.rotation_weight": 0.5}),
        ("cifar10-40", "comatch", {"algorithm.temperature": 0.2, "algorithm.smoothing": 0.9, "algorithm.window": 32}),
        ("cifar10-40", "comatch", {"algorithm.graph_threshold": 0.8, "algorithm.contrastive_weight": 1}),
        ("cifar10-40", "comatch", {"algorithm.bank": 5 * (7 + 1) * 64, "algorithm.embedding": 64}),
        ("stl10-40", "comatch", {"algorithm.contrastive_weight": 5}),
        ("cifar10-40", "semco", {"algorithm.confidence": 0.95, "algorithm.similarity": 0.7}),
        ("cifar10-40", "semco", {"algorithm.group_distance": 0.2, "algorithm.semantic_weight": 3}),
        ("cifar10-40", "mpl", {"algorithm.temperature": 0.7, "algorithm.confidence": 0.6, "algorithm.uda_weight": 8}),
        ("cifar10-40", "mpl", {"algorithm.label_smoothing": 0.15, "algorithm.baseline_decay": 0.99}),
        ("cifar10-40", "ups", {"algorithm.samples": 10, "algorithm.dropout": 0.3, "algorithm.max_std": 0.05}),
        ("cifar10-40", "ups", {"algorithm.negative_confidence": 0.05, "algorithm.negative_max_std": 0.005}),
        ("cifar10-40", "simmatch", {"algorithm.smoothing": 0.9, "algorithm.temperature": 0.1, "algorithm.window": 32}),
        ("imagenet-100k", "simmatch", {"algorithm.unlabeled_weight": 10, "algorithm.instance_weight": 5}),
        ("cifar10-40", "crmatch", {"algorithm.distance_weight": 1, "algorithm.rotation_weight": 1}),
        ("cifar10-40", "regmixmatch", {"algorithm.mixing_confidence": 0.999, "algorithm.class_aware": True}),
        ("cifar100-400", "regmixmatch", {"algorithm.mixing_confidence": 0.99, "algorithm.class_aware": False}),
        ("cifar10-40", "pseudolabel", {"algorithm.confidence": 0.95, "algorithm.unlabeled_weight": 1}),
        ("cifar10-40", "pseudolabel", {"algorithm.ramp": 0.4, "training.unlabeled_ratio": 1}),
        ("cifar10-40", "pimodel", {"algorithm.unlabeled_weight": 10, "training.unlabeled_ratio": 1}),
        ("cifar10-40", "meanteacher", {"algorithm.unlabeled_weight": 50, "algorithm.teacher_decay": 0.999}),
        ("cifar10-40", "vat", {"algorithm.radius": 6, "algorithm.unlabeled_weight": 0.3}),
        ("cifar10-40", "vat", {"algorithm.entropy_weight": 0.06, "training.unlabeled_ratio": 1}),
        ("digits-40", "vat", {"algorithm.radius": round(6 * (8 * 8 / (32 * 32 * 3)) ** 0.5, 2)}),
        ("fashion-mnist-40", "vat", {"algorithm.radius": round(6 * (28 * 28 / (32 * 32 * 3)) ** 0.5, 2)}),
        ("digits-40", "meanteacher", {"algorithm.teacher_decay": 0.99, "training.unlabeled_ratio": 1}),
    ],
)
def test_methods_have_the_settings_they_are_compared_by(recipe, algorithm, settings):
    config = make_config(recipe_layer(recipe, algorithm), {"algorithm.name": algorithm}).flat()
    assert {key: config[key] for key in settings} == settings


def test_the_open_recipes_have_the_lengths_of_the_open_set_methods():
    epochs = {"fixmatch": 1024, "openmatch": 512, "iomatch": 256, "ssb": 512}
    for labels in (24, 150, 300):
        for algorithm, number in epochs.items():
            config = make_config(recipe_layer(f"cifar10-open-{labels}", algorithm), {"algorithm.name": algorithm})
            assert (config.data.source, config.data.labels) == ("cifar10-open", labels)
            assert config.training.iterations == 1024 * number
            assert config.training.unlabeled_ratio == (2 if algorithm in ("openmatch", "ssb") else 7)


def test_the_papers_figures_stand_beside_the_recipes():
    assert RECIPES["cifar10-40"].paper_error["npmatch"] == (4.91, 0.04)
    assert RECIPES["stl10-40"].paper_error["npmatch"] == (14.20, 0.67)
    assert RECIPES["cifar100-2500"].paper_error["remixmatch"] == (26.03, 0.35)
    assert RECIPES["stl10-1000"].paper_error["npmatch/js_dual"] == (5.47, 0.19)
    assert RECIPES["imagenet-100k"].paper_error["npmatch"] == (41.78, None)
    assert RECIPES["cifar10-250"].paper_error["freematch"] == (4.88, 0.18)
    assert RECIPES["stl10-1000"].paper_error["softmatch"] == (5.73, 0.24)
    assert RECIPES["cifar100-400"].paper_error["regmixmatch"] == (35.27, None)
    assert "adamatch" not in RECIPES["cifar100-400"].paper_error, "measured with another network"
    assert "freematch" not in RECIPES["stl10-250"].paper_error, "not published"
    assert RECIPES["cifar10-open-150"].paper_error["iomatch"] == (pytest.approx(100 - 93.87), None)
    imagenet = make_config(recipe_layer("imagenet-100k", "npmatch"))
    assert (imagenet.algorithm.confidence, imagenet.algorithm.max_entropy, imagenet.algorithm.width) == (
        0.7,
        1.2,
        256,
    )
