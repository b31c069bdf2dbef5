"""Streams, readers, model fields, delivery to a JAX mesh, resume; trace and inspect."""
