"""Gristmill turns raw text into training batches: Megatron shards and indices on one side, JAX arrays on the other.

The rooms are `formats` (the files both sides share), `tokenize` (text to ids), `pipelines` (Beam jobs),
`runtime` (streams and batches) and `dataflow` (launching on Google Cloud). Importing this package imports none
of them, so that a TPU host never loads Beam and a Dataflow worker never loads JAX.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
