"""Writes the files that `gcloud dataflow flex-template build` reads; `python -m gristmill.dataflow.template FOLDER`.

Both follow from the launcher's own table of options, so that what a template offers is what the launcher takes.
"""

import sys
from pathlib import Path

from gristmill.dataflow.flags import template_metadata
from gristmill.formats.fingerprint import pretty_json
from gristmill.formats.storage import write_bytes

__all__ = ["IMAGE_PLACE", "template_files"]

IMAGE_PLACE = "REGION-docker.pkg.dev/PROJECT/REPOSITORY/gristmill:0.1.0"
"""What stands in the image spec until you put the address of your image there."""


def template_files() -> dict[str, bytes]:
    """The metadata and the image spec (a container spec of Google's) by file name."""
    metadata = template_metadata()
    spec = {"image": IMAGE_PLACE, "metadata": metadata, "sdkInfo": {"language": "PYTHON"}}
    return {"metadata.json": pretty_json(metadata), "image_spec.json": pretty_json(spec)}


if __name__ == "__main__":
    for name, data in template_files().items():
        write_bytes(str(Path(sys.argv[1]) / name), data)
