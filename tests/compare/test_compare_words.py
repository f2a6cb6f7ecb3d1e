"""What a user types for `compare` and `sweep`: variants are parsed, and bad input is an error of one line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npmatch.cli import main
from npmatch.compare import parse_variant, parse_variants

COMMAND = ["compare", "cifar10-40", "training.batch=32", "--algorithms", "npmatch", "--seeds", "2"]


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("npmatch", ["npmatch"]),
        ("npmatch, supervised", ["npmatch", "supervised"]),
        (
            "npmatch,npmatch[divergence=kl],npmatch[alpha=0.5]",
            ["npmatch", "npmatch[divergence=kl]", "npmatch[alpha=0.5]"],
        ),
        ("npmatch[samples=3;alpha=0.5]", ["npmatch[alpha=0.5;samples=3]"]),
        ("npmatch[algorithm.samples=3],npmatch[samples=3]", ["npmatch[samples=3]"]),
        (
            "npmatch[augment.operations=a,b;samples=3],supervised",
            ["npmatch[samples=3;augment.operations=a,b]", "supervised"],
        ),
        ("npmatch[preset=reference]", ["npmatch[preset=reference]"]),
        ("npmatch[],npmatch", ["npmatch"]),
    ],
)
def test_variants_are_read_as_they_are_written(text, labels):
    assert [variant.label for variant in parse_variants(text)] == labels


def test_all_is_every_algorithm_and_may_have_variants_beside_it():
    from npmatch.algorithms import ALGORITHMS

    found = parse_variants("all,npmatch,npmatch[divergence=kl]")
    assert [variant.label for variant in found] == [*ALGORITHMS, "npmatch[divergence=kl]"]


keys = st.from_regex(r"[a-z_]{1,8}(\.[a-z_]{1,8})?", fullmatch=True)
values = st.text(st.characters(exclude_characters="[];", exclude_categories=["C", "Z"]), min_size=1, max_size=12)


@given(settings=st.dictionaries(keys, values, max_size=4))
def test_a_variant_survives_being_written_and_read(settings):
    written = "npmatch[" + ";".join(f"{key}={value}" for key, value in settings.items()) + "]"
    variant = parse_variant(written)
    assert parse_variants(f"supervised,{variant.label},npmatch")[1] == variant
    assert set(dict(variant.settings).values()) == set(settings.values())
    assert len(variant.slug) <= 100
    assert "/" not in variant.slug
    assert variant.slug not in (".", "..")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["compare", "digits-40", "--algorithms", "npmatch,supervise"],
            "unknown algorithm 'supervise'; did you mean 'super",
        ),
        (["compare", "digits-40", "--algorithms", "npmatch[alpha"], "'npmatch[alpha' is not of the form NAME"),
        (["compare", "digits-40", "--algorithms", "npmatch[alpha]"], "'alpha' in 'npmatch[alpha]' is not of the form"),
        (["compare", "digits-40", "--algorithms", "npmatch[alpha=1;alpha=2]"], "sets algorithm.alpha twice"),
        (["compare", "digits-40", "--algorithms", "npmatch[alfa=1]"], "npmatch[alfa=1]: unknown key 'algorithm.alfa'"),
        (["compare", "digits-40", "--algorithms", "npmatch[samples=x]"], "must be a valid integer"),
        (["compare", "digits-40", "--algorithms", ""], "is not of the form"),
        (["compare", "digits-40", "algorithm.samples=3", "--algorithms", "supervised"], "NAME[key=value]"),
        (["compare", "digits-41"], "unknown recipe 'digits-41'"),
        (["compare", "digits-40", "cifar10-40"], "one recipe at a time"),
        (["compare", "digits-40", "seed=3"], "seed cannot be set here: use --seeds"),
        (["compare", "digits-40", "--seeds", "0"], "seeds=0"),
        (["compare", "digits-40", "--first-seed", "-1"], "first-seed=-1"),
        (["compare", "digits-40", "--jobs", "0"], "jobs=0"),
        (["compare", "digits-40", "--budget-iterations", "0"], "budget-iterations=0"),
        (["compare", "digits-40", "--budget-minutes", "0"], "budget-minutes=0"),
        (["compare", "digits-40", "--budget-iterations", "9", "--budget-minutes", "1"], "not both"),
        (["compare", "digits-40", "training.iterations=9", "--budget-iterations", "9"], "not both"),
        (["sweep", "digits-40", "algorithm.samples=3"], "exactly one key with several values"),
        (["sweep", "digits-40", "algorithm.samples=3,4", "algorithm.alpha=0,1"], "exactly one key with several values"),
        (["sweep", "digits-40", "algorithm.samples=3,3"], "two different values"),
        (["sweep", "digits-40", "samples=3,4"], "unknown key 'samples'; did you mean 'algorithm.samples'?"),
        (["sweep", "digits-40", "seed=3,4"], "seed cannot be set here"),
        (["sweep", "digits-40", "algorithm.samples=3,4", "algorithm.samples=5"], "give it once"),
        (["sweep", "digits-40", "training.ema=0.5,0.9", "--algorithm", "superwised"], "did you mean 'supervised'?"),
    ],
)
def test_bad_input_is_one_line_exit_code_2_and_leaves_no_folder(words, message, tmp_path, capsys):
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("dear")
    assert main([*COMMAND, "--out", str(tmp_path)]) == 2
    assert "not empty and not a comparison" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    (tmp_path / "compare.json").write_text('{"format": 1}')
    assert main([*COMMAND, "--out", str(tmp_path)]) == 2
    assert "not a comparison written by npmatch" in capsys.readouterr().err
