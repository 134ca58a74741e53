"""Programs of others: simulators, SAT proofs, synthesis, and `Hardware`, which runs them."""
