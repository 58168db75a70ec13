"""A stream that resumes exactly, packs, and keeps the device fed."""
