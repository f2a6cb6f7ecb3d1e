"""What several tests share: a run small enough to train in a test."""

import pytest
import torch
import torch.distributed as dist

import npmatch
from npmatch.distributed.collective import traffic
from tiny import train_tiny


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Small tensors: more threads would only wait for one another."""
    torch.set_num_threads(1)


@pytest.fixture
def one_rank():
    """A process group of one rank, whose traffic is counted from zero."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    traffic.clear()
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory) -> npmatch.Run:
    """A finished NP-Match run on digits, shared by the tests that only read it."""
    return train_tiny(tmp_path_factory.mktemp("runs") / "tiny")
