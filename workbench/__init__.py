"""Loader Workbench."""
