"""Several processes that train one run: ranks, collectives on tensors, devices."""
