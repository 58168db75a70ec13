"""Formats that settings are exported in: one a file, each a function from a document to text."""
