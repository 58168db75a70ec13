"""Make the pipeline reviewable: manifests, batch checks, resume tests, samples per second per rank."""
