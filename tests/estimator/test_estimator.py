"""NPMatchClassifier as users of scikit-learn use it; scikit-learn's own checks are one of the oracles."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import DataConversionWarning
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import npmatch
from npmatch import NPMatchClassifier
from npmatch.errors import NPMatchError
from npmatch.estimator.arrays import FeatureRows
from npmatch.predict.files import predict_files

DOCS = Path(__file__).parents[2] / "docs"
FLOAT32 = (
    "the network computes in float32, whose sums depend on the batch's order in the last bit (checked at 1e-5 below)"
)
EXPECTED_FAILURES = {
    "check_classifiers_classes": "one of its label sets is {-1, 1}, where -1 is a class; here -1 means unlabelled",
    "check_methods_sample_order_invariance": FLOAT32,
    "check_methods_subset_invariance": FLOAT32,
}


@parametrize_with_checks(
    [NPMatchClassifier(iterations=16, device="cpu")], expected_failed_checks=lambda estimator: EXPECTED_FAILURES
)
def test_scikit_learns_checks(estimator, check):
    check(estimator)


def quick(**changes) -> NPMatchClassifier:
    return NPMatchClassifier(**{"iterations": 6, "device": "cpu", "random_state": 0, **changes})


@pytest.fixture(scope="module")
def digits():
    """200 images in [0, 1] as n h w and their labels, three of four unlabelled."""
    data = load_digits()
    X, y = data.images[:200] / 16, data.target[:200].copy()
    y[np.arange(200) % 4 != 0] = -1
    return X, y


def test_the_order_and_the_number_of_images_change_nothing(digits):
    X, y = digits
    fitted = quick().fit(X, y)
    whole, order = fitted.predict_proba(X), np.random.default_rng(0).permutation(len(X))
    np.testing.assert_allclose(fitted.predict_proba(X[order]), whole[order], atol=1e-5)
    np.testing.assert_allclose(
        np.concatenate([fitted.predict_proba(X[i : i + 7]) for i in range(0, 70, 7)]), whole[:70], atol=1e-5
    )


@pytest.mark.parametrize(("labels", "aligned"), [([4, 4, 4], True), ([4, 8, 4], True), ([4, 9, 4], False)])
def test_predictions_are_aligned_with_equal_classes_where_labels_are_balanced(labels, aligned):
    data = load_digits()
    known = np.concatenate([np.flatnonzero(data.target == k)[:n] for k, n in enumerate(labels)])
    y = np.full(60, -1)
    y[: len(known)] = data.target[known]
    X = np.concatenate([data.images[known], data.images[100 : 160 - len(known)]]) / 16
    assert quick().fit(X, y).classifier_.spec.algorithm_config["alignment"] is aligned


def test_images_flat_rows_and_bytes_are_one_thing(digits):
    X, y = digits
    pixels = np.rint(X * 255).astype(np.uint8)
    expected = quick().fit(X, y).predict_proba(X)
    for same, shape in (
        (pixels, None),
        (pixels[..., None], None),
        (X.reshape(200, 64), (8, 8)),
        (X.reshape(200, 64), None),
    ):
        fitted = quick(image_shape=shape).fit(same, y)
        assert fitted.image_shape_ == (8, 8, 1)
        assert fitted.n_features_in_ == 64
        np.testing.assert_array_equal(fitted.predict_proba(same), expected)
        np.testing.assert_array_equal(fitted.predict_proba(X), expected)


def test_bytes_of_0_and_1_are_refused_and_dark_ones_are_a_warning(digits):
    X, y = digits
    binary = (X > 0.5).astype(np.uint8)
    for images in (binary, binary.reshape(200, 64)):
        with pytest.raises(ValueError, match=r"largest value is 1, .* nearly black; scale them to 0–255"):
            quick().fit(images, y)
    with pytest.warns(UserWarning, match="largest value is 16"):
        quick().fit((X * 16).astype(np.uint8), y)
    fitted = quick().fit(binary * np.uint8(255), y)
    with pytest.warns(UserWarning, match="largest value is 1,"):
        fitted.predict(binary)
    expected = fitted.predict_proba(binary * np.uint8(255))
    np.testing.assert_array_equal(fitted.predict_proba(binary.astype(float)), expected)
    fitted.predict(np.zeros((2, 8, 8), np.uint8))  # images may be black


def test_features_keep_their_order_in_a_range_that_overflows():
    rows = np.array([[-1.7e308], [0.0], [1.7e308]])
    with np.errstate(over="raise", invalid="raise"):
        assert FeatureRows.of(rows).pixels(rows).flatten().tolist() == [0, 128, 255]


def test_colour_and_oblong_images(digits):
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 256, (40, 9, 12, 3)).astype(np.uint8), np.arange(40) % 3 - 1
    X[y == 0] //= 4
    fitted = quick().fit(X, y)
    assert fitted.image_shape_ == (9, 12, 3)
    assert fitted.classifier_.spec.stored_side == 12
    assert fitted.predict_proba(X).shape == (40, 2)


def test_uncertainty_is_the_entropy_of_the_probabilities(digits):
    X, y = digits
    fitted = quick().fit(X, y)
    p, u = fitted.predict_proba(X), fitted.predict_uncertainty(X)
    np.testing.assert_allclose(u, -(p * np.log(p)).sum(1), atol=1e-5)
    np.testing.assert_array_equal(fitted.predict(X), fitted.classes_[p.argmax(1)])


@pytest.mark.parametrize("kind", ["object array", "list", "array of names"])
def test_names_as_labels(digits, kind):
    X, numbers = digits
    y = [-1 if n == -1 else ["zero", "odd", "even"][0 if n == 0 else 1 if n % 2 else 2] for n in numbers]
    y = {"object array": np.array(y, dtype=object), "list": y, "array of names": np.array(y)}[kind]
    fitted = quick().fit(X, y)
    assert fitted.classes_.tolist() == ["even", "odd", "zero"]
    assert set(fitted.predict(X)) <= {"even", "odd", "zero"}
    assert fitted.classifier_.class_names == ("even", "odd", "zero")
    known = [i for i in range(200) if y[i] not in (-1, "-1")]
    assert fitted.score(X, y) == np.mean(fitted.predict(X)[known] == np.array(y, dtype=object)[known])


def test_names_and_unlabelled_images_in_cross_validation(digits):
    X, numbers = digits
    y = np.array(["-1" if n == -1 else "odd" if n % 2 else "even" for n in numbers])
    scores = cross_val_score(quick(), X, y, cv=2, error_score="raise")
    assert ((scores >= 0) & (scores <= 1)).all()


def test_the_score_of_a_column_of_labels(digits):
    X, y = digits
    fitted = quick().fit(X, y)
    with pytest.warns(DataConversionWarning):
        assert fitted.score(X, y[:, None]) == fitted.score(X, y)
    with pytest.raises(ValueError, match="1d array"):
        fitted.score(X, np.eye(10)[y])


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_of_no_images_is_refused(digits, size, tmp_path):
    X, y = digits
    classifier = quick().fit(X, y).classifier_
    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    images = torch.zeros(3, 1, 8, 8, dtype=torch.uint8)
    for predict in (
        lambda: classifier.predict(images, batch_size=size),
        lambda: classifier.predict([tmp_path / "x.png"], batch_size=size),
        lambda: classifier.decide(images, batch_size=size),
        lambda: predict_files(classifier, [tmp_path], tmp_path / "out.csv", batch_size=size),
    ):
        with pytest.raises(NPMatchError, match=f"batch_size={size}: give a number"):
            predict()


def test_equal_seeds_give_equal_fits_and_nothing_else_is_disturbed(digits, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    X, y = digits
    torch.manual_seed(5)
    before, kept = torch.get_rng_state(), X.copy()
    first, second, other = (quick(random_state=seed).fit(X, y).predict_proba(X) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(X, kept)
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("algorithm", ["npmatch", "mpl", "ups"])
def test_clone_and_pickle(digits, algorithm):
    X, y = digits
    fitted = quick(algorithm=algorithm, iterations=3).fit(X, y)
    assert not hasattr(clone(fitted), "classes_")
    assert clone(fitted).get_params() == fitted.get_params()
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))


def test_grid_search_and_pipelines(digits):
    X, y = digits
    X = X.reshape(len(X), -1) * 16
    pipeline = make_pipeline(MinMaxScaler((0, 1), clip=True), quick(image_shape=(8, 8)))
    search = GridSearchCV(pipeline, {"npmatchclassifier__algorithm": ["supervised", "fixmatch"]}, cv=StratifiedKFold(2))
    search.fit(X, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(X).shape == (200,)
    table = make_pipeline(FunctionTransformer(), quick(iterations=2)).fit(X - 8, y)  # below 0: features, not pixels
    assert table[-1].image_shape_ is None


def test_warm_start_goes_on_from_the_weights(digits):
    X, y = digits

    def weights(estimator):
        return torch.cat([p.detach().flatten() for p in estimator.algorithm_.parameters()])

    model = quick(iterations=40, warm_start=True).fit(X, y)
    trained, probs = weights(model), model.predict_proba(X)
    model.set_params(iterations=1).fit(X[:150], y[:150])  # the curriculum counts other images now
    fresh = quick(iterations=1).fit(X, y)
    assert model.n_iter_ == 1
    assert np.abs(model.predict_proba(X) - probs).mean() < 0.5 * np.abs(fresh.predict_proba(X) - probs).mean()
    assert (weights(model) - trained).norm() < 0.5 * (weights(fresh) - trained).norm()
    with pytest.raises(ValueError, match="classes"):
        model.fit(X, np.where(y == 9, -1, y))
    with pytest.raises(npmatch.NPMatchError, match="warm_start: its weights do not fit"):
        model.set_params(algorithm="mpl").fit(X, y)
    cold = model.set_params(algorithm="npmatch", warm_start=False).fit(X, y)
    np.testing.assert_array_equal(cold.predict_proba(X), fresh.predict_proba(X))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda X, y: (X * 16, y), "floats in \\[0, 1\\]"),
        (lambda X, y: (X[:, None, :, :], y), "channels c at the end"),
        (lambda X, y: (X, np.full(200, -1)), "no label but −1"),
        (lambda X, y: (X, ["a", 1] * 100), "names and numbers"),
        (lambda X, y: (X, y[:-1]), "inconsistent numbers of samples"),
        (lambda X, y: (X, np.linspace(0, 1, 200)), "continuous"),
    ],
)
def test_bad_input(digits, change, message):
    with pytest.raises(ValueError, match=message):
        quick().fit(*change(*digits))


def test_other_bad_input(digits):
    X, y = digits
    with pytest.raises(ValueError, match="image_shape"):
        quick(image_shape=(8, 9)).fit(X.reshape(200, -1), y)
    with pytest.raises(ValueError, match="is expected"):
        quick(iterations=1).fit(X, y).predict(X.reshape(200, 4, 16))
    with pytest.raises(ValueError, match="iterations=0"):
        quick(iterations=0).fit(X, y)
    with pytest.raises(npmatch.NPMatchError, match="did you mean 'npmatch'"):
        quick(algorithm="npmach").fit(X, y)


def example() -> str:
    (source,) = re.findall(
        r"```python\n(# digits.*?)```", (DOCS / "estimator.md").read_text(encoding="utf-8"), re.DOTALL
    )
    return source


def test_the_example_in_the_docs_runs(capsys):
    exec(example().replace("NPMatchClassifier(", "NPMatchClassifier(iterations=3, "), {})
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.slow
def test_the_example_in_the_docs_is_worth_it(capsys):
    exec(example(), {})
    npmatch_score, supervised_score, _ = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert npmatch_score > 0.96
    assert npmatch_score > supervised_score + 0.02
