"""Random input for property tests, and the slow evaluation that results are compared with."""
