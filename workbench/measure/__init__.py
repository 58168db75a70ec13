"""Measure before you rewrite: isolated trials, memory, statistics, stages, diagnosis and traces."""
