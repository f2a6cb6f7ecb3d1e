"""Several processes that train one run: ranks, collectives on tensors, devices; and many jobs, here or on a cluster."""
