"""External programs: simulators, SAT proofs, synthesis, and `Hardware`, which runs them."""
