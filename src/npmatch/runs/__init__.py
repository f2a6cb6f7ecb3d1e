"""A run from its request to its report, and what can be done with a finished one."""
