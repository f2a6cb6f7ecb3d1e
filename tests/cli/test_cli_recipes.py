"""`npmatch recipes`."""

import json

from npmatch.cli import main


def test_recipes_are_listed_with_the_papers_error(capsys):
    assert main(["recipes", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    assert rows["cifar10-40"]["paper_error"]["npmatch"] == [4.91, 0.04]
    assert {"digits-40", "cifar100-10000", "stl10-1000", "imagenet-100k"} <= rows.keys()
    assert main(["recipes"]) == 0
    assert "4.91 ± 0.04 %" in capsys.readouterr().out
