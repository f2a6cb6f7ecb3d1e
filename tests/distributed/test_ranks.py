"""The identity of a torchrun, from its environment variables."""

from npmatch.distributed.ranks import launcher_id


def test_a_torchrun_keeps_its_id_over_restarts(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert launcher_id() == ""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # the default name, which several torchruns may have
    ids = []
    for folder in ("/tmp/a/none_x/attempt_0", "/tmp/a/none_x/attempt_1", "/tmp/b/none_y/attempt_0"):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", f"{folder}/0/error.json")
        ids.append(launcher_id())
    assert ids[0] == ids[1] != ids[2]
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    assert launcher_id() == launcher_id() != ""
