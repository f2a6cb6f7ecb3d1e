"""A process group of one rank: every collective is the identity, and what it sends is counted."""

import torch

from npmatch.distributed.collective import all_gather_parts, all_reduce_mean_, local_rows, traffic
from npmatch.distributed.ranks import all_gather_object, all_reduce_max, is_rank_zero, on_rank_zero, world_size


def test_collectives_on_tensors_are_the_identity_and_are_counted(one_rank):
    rows = torch.randn(6, 2, requires_grad=True)
    first, second = all_gather_parts(rows, [2, 4])
    assert torch.equal(torch.cat([first, second]), rows)
    (2 * first.sum() + 3 * second.sum()).backward()
    assert rows.grad[:, 0].tolist() == [2, 2, 3, 3, 3, 3]
    assert torch.equal(local_rows(rows), rows)
    tensors = [torch.randn(3, 4), torch.randn(())]
    before = [t.clone() for t in tensors]
    all_reduce_mean_(tensors)
    torch.testing.assert_close(tensors, before)
    assert (traffic.collectives, traffic.sent) == (2, 6 * 2 * 4 + 13 * 4)  # float32 has 4 bytes


def test_collectives_on_objects_are_the_identity(one_rank):
    assert (world_size(), is_rank_zero()) == (1, True)
    assert (all_reduce_max(7), all_gather_object("a"), on_rank_zero(lambda: 3)) == (7, ["a"], 3)
