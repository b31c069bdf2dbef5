"""The files that preparation and training share: shards, indices, manifest, receipts, recipe, storage.

Imports nothing of the other rooms; needs NumPy, Numba and fsspec only. `README.md` beside this file describes each
file byte by byte. Import what you need from its own module: the folder is the table of contents.
"""
