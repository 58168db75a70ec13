"""Tune the knobs in the right order: spaces, strategies, the store, sweeps and exports."""
