"""Which process writes."""

import os
import socket
import subprocess
import sys

from gristmill.runtime.process import process_number


def test_the_caller_knows_best_and_a_single_process_is_the_first() -> None:
    assert process_number(3) == 3
    assert process_number() == 0


def test_jax_is_neither_loaded_nor_started_to_ask() -> None:
    code = (
        "import sys\n"
        "from gristmill.runtime.process import process_number\n"
        "assert process_number() == 0 and 'jax' not in sys.modules\n"
        "import jax\n"
        "assert process_number() == 0\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge.backends_are_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


WORKER = """
import sys, jax
jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
from gristmill.runtime.process import process_number
print(process_number())
jax.distributed.shutdown()
"""


def test_of_a_distributed_job_it_is_jaxs() -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, address, str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(2)
    ]
    said = [process.communicate(timeout=120) for process in running]
    assert [out.strip() for out, _ in said] == ["0", "1"], said
