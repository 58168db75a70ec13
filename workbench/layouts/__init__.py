"""Fix the file format: layouts, and conversion from any to any."""
