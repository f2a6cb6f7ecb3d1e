"""The benchmark of audits: every kind is judged, and a user who does not pay for his looks is caught."""

import numpy as np
import pytest

from benchmarks.audits import Pool, bench_audits, read_pool
from npmatch.errors import NPMatchError


def test_audits_keep_their_promises_and_unpaid_looks_do_not():
    rng = np.random.default_rng(0)
    doubt = rng.beta(0.3, 1.7, 400)
    result = bench_audits(Pool(doubt, (rng.random(400) < doubt).astype(float)), "made up", repetitions=150)
    by_rule = {(row["rule"], row["labels"]): row for row in result.rows}
    for rule in ("random", "--weighted"):
        for n in (30, 60, 100):
            row = by_rule[rule, n]
            assert row["covers"]
            assert abs(row["bias"]) < 3.5 * row["standard_error"]
    assert by_rule["--weighted", 100]["factor"] > 1
    paid, unpaid = result.rows[-2:]
    assert paid["covers"]
    assert unpaid["coverage"] < paid["coverage"]


def test_the_true_labels_of_a_run_are_found(tiny_run, tmp_path):
    pool = read_pool(tiny_run.folder, None, None, "cpu")
    assert len(pool.doubt) == len(pool.wrong) > 1000
    assert 0 < pool.error <= 1
    truth = tmp_path / "truth.csv"
    truth.write_text("path,label\n#0,none\n")
    with pytest.raises(NPMatchError, match="unknown class"):
        read_pool(tiny_run.folder, truth, None, "cpu")
