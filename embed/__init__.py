"""Images in, clipped embeddings out: extraction, storage, the public transform."""
