"""The log of a run: means worked out by hand, warnings, and a file that survives crashes and full disks."""

import errno
import json

import pytest
import torch

from npmatch.errors import NPMatchError
from npmatch.training import Meter, Recorder, read_log
from npmatch.training.log import PseudoLabelMonitor
from npmatch.types import Step


def make_step(loss, pseudo, keep):
    return Step(torch.tensor(loss), {"alpha": torch.tensor(2 * loss)}, torch.tensor(pseudo), torch.tensor(keep))


def test_means_trusted_share_and_pseudo_label_accuracy():
    meter = Meter(3, truth=torch.tensor([0, 1, 2, -1]))
    meter.add(make_step(1.0, [0, 2], [True, True]), torch.tensor([0, 1]), {"extra": torch.tensor(1.0)})
    meter.add(make_step(3.0, [2, 1], [True, True]), torch.tensor([2, 3]), {"extra": torch.tensor(2.0)})
    meter.add(make_step(5.0, [1, 1], [False, False]), torch.tensor([2, 3]), {"extra": torch.tensor(3.0)})
    means = meter.read()
    assert means["loss"] == 3
    assert means["alpha"] == 6
    assert means["extra"] == 2
    assert means["trusted"] == pytest.approx(4 / 6)
    assert means["pseudo_accuracy"] == pytest.approx(2 / 3)  # one of four has no known label, one is wrong
    assert means["largest_class_share"] == pytest.approx(2 / 4)


def test_images_of_no_class_are_counted_apart():
    meter = Meter(3, truth=torch.tensor([0, 1, -2, -1, -2, -2]))
    meter.add(make_step(1.0, [0, 2, 1, 1], [True, True, True, False]), torch.tensor([0, 1, 2, 3]), {})
    meter.add(make_step(1.0, [1, 1, 2, 0], [True, False, False, True]), torch.tensor([3, 4, 5, 0]), {})
    means = meter.read()
    assert means["trusted"] == pytest.approx(5 / 8)
    assert means["pseudo_accuracy"] == pytest.approx(2 / 3)  # images 0, 1 and 0 again: the third trusted is of no class
    assert means["foreign_trusted"] == pytest.approx(1 / 3)
    assert means["trusted_is_foreign"] == pytest.approx(1 / 5)
    meter.add(make_step(1.0, [0, 1], [False, False]), torch.tensor([0, 1]), {})
    assert meter.read().keys() == {"loss", "alpha", "trusted"}  # none seen, none trusted: no share to speak of
    known = Meter(3, truth=torch.tensor([0, -1]))
    known.add(make_step(1.0, [0, 1], [True, True]), torch.tensor([0, 1]), {})
    assert not {"foreign_trusted", "trusted_is_foreign"} & known.read().keys()


def test_pseudo_labels_with_weights_count_by_their_weights():
    meter = Meter(3, truth=torch.tensor([0, 1, 2, -1, -2]))
    meter.add(make_step(1.0, [0, 2], [0.5, 1.0]), torch.tensor([0, 1]), {})
    meter.add(make_step(1.0, [2, 1, 2], [0.25, 0.75, 0.5]), torch.tensor([2, 3, 4]), {})
    means = meter.read()
    assert means["trusted"] == pytest.approx(3 / 5)
    assert means["pseudo_accuracy"] == pytest.approx((0.5 + 0.25) / (0.5 + 1 + 0.25))
    assert means["largest_class_share"] == pytest.approx((1 + 0.25 + 0.5) / 3)
    assert means["foreign_trusted"] == pytest.approx(0.5)
    assert means["trusted_is_foreign"] == pytest.approx(0.5 / 3)


def test_an_interval_survives_a_checkpoint():
    truth = torch.tensor([0, 1])
    whole, first, second = Meter(2, truth), Meter(2, truth), Meter(2, truth)
    for meter, losses in ((whole, [1.0, 2.0]), (first, [1.0])):
        for loss in losses:
            meter.add(make_step(loss, [0, 1], [True, False]), torch.tensor([0, 1]), {})
    second.load_state_dict(first.state_dict())
    second.add(make_step(2.0, [0, 1], [True, False]), torch.tensor([0, 1]), {})
    assert second.read() == whole.read()


def test_supervised_steps_have_no_trusted_share():
    meter = Meter(2, torch.tensor([0, 1]))
    meter.add(Step(torch.tensor(1.0), {}), torch.empty(0, dtype=torch.long), {})
    assert meter.read() == {"loss": 1.0}


def test_a_warning_comes_once_where_nothing_is_trusted():
    monitor = PseudoLabelMonitor(10, patience=3)
    warnings = [monitor.warnings_after({"trusted": 0.0}) for _ in range(6)]
    assert [len(due) for due in warnings] == [0, 0, 1, 0, 0, 0]
    assert "algorithm.max_entropy" in warnings[2][0]


def test_a_warning_comes_where_one_class_holds_most_pseudo_labels():
    monitor = PseudoLabelMonitor(10, patience=2)
    lines = [{"trusted": 0.5, "largest_class_share": share} for share in (0.9, 0.2, 0.9, 0.9)]
    warnings = [monitor.warnings_after(line) for line in lines]
    assert [len(due) for due in warnings] == [0, 0, 0, 1]
    assert "alignment" in warnings[3][0]


def test_a_resumed_log_has_no_gap_and_no_repeat(tmp_path):
    recorder = Recorder(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    for step in (5, 10, 15):
        recorder.write("train", step, {"loss": 1.0 / step, "seconds": float(step)})
    recorder.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"kind": "train", "step": 20, "lo')  # torn by a crash
    recorder = Recorder(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", resume_at=10)
    assert recorder.seconds_before == 10
    recorder.write("train", 15, {"loss": 2.0})
    recorder.close()
    assert [(r["step"], r["loss"]) for r in read_log(tmp_path / "metrics.jsonl")] == [(5, 0.2), (10, 0.1), (15, 2.0)]


class FullAfter:
    """A file on a disk that takes some bytes more and then refuses."""

    def __init__(self, file, room: int) -> None:
        self.file, self.room = file, room

    def write(self, content: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(self.room, len(content))
        self.room -= taken
        return self.file.write(content[:taken])

    def __getattr__(self, name):
        return getattr(self.file, name)


def test_a_line_the_disk_refused_is_written_with_the_next_one(tmp_path):
    recorder = Recorder(tmp_path / "metrics.jsonl", tmp_path / "tensorboard")
    recorder.write("train", 5, {"loss": 1.0})
    recorder.file = FullAfter(recorder.file, room=11)
    with pytest.raises(OSError, match="No space"):
        recorder.write("train", 10, {"loss": 0.5})
    assert [r["step"] for r in read_log(tmp_path / "metrics.jsonl")] == [5]
    recorder.file.room = 10_000
    recorder.write("train", 15, {"loss": 0.25})
    recorder.close()
    assert [(r["step"], r["loss"]) for r in read_log(tmp_path / "metrics.jsonl")] == [(5, 1.0), (10, 0.5), (15, 0.25)]


def test_an_altered_log_is_named_and_a_torn_end_is_not_an_alteration(tmp_path):
    lines = [json.dumps({"kind": "train", "step": step}) for step in (5, 10)]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, "\0\0\0\0", ""]))
    assert [r["step"] for r in read_log(tmp_path / "metrics.jsonl")] == [5, 10]
    (tmp_path / "metrics.jsonl").write_text("\n".join([lines[0], "oops", lines[1], ""]))
    with pytest.raises(NPMatchError, match=r"metrics\.jsonl, line 2"):
        read_log(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("line", ['{"kind":"train","step":"x"}', '{"kind":["train"],"step":1}', '{"step":1}',
                                  '{"kind":"train","step":1,"seconds":"x"}', '{"kind":"train"}', "7"])  # fmt: skip
def test_a_line_of_other_types_is_no_record(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{line}\n{{"kind":"train","step":5,"seconds":1}}\n')
    with pytest.raises(NPMatchError, match=r"metrics\.jsonl, line 1: not a record"):
        read_log(tmp_path / "metrics.jsonl")


def test_tensorboard_shows_every_step_once_after_a_resume(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for resume_at, steps in ((None, (5, 10, 15)), (10, (15, 20))):
        recorder = Recorder(tmp_path / "metrics.jsonl", tmp_path / "tensorboard", resume_at)
        for step in steps:
            recorder.write("train", step, {"loss": step + (0.5 if resume_at else 0.0)})
        recorder.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(point.step, point.value) for point in events.Scalars("train/loss")] == [
        (5, 5.0),
        (10, 10.0),
        (15, 15.5),
        (20, 20.5),
    ]
