import subprocess
import sys

import pytest

_PROGRAM = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
before = sorted(os.listdir("/proc/self/fd"))
from loadchaos.core.open_files import allow_many_open_files
allow_many_open_files()
size = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("FDSize"))
print(size, *resource.getrlimit(resource.RLIMIT_NOFILE), before == sorted(os.listdir("/proc/self/fd")))
"""


@pytest.mark.parametrize(("soft", "hard", "size"), [(64, 2000, 2000), (2000, 2000, 2000), (64, 64, 64)])
def test_table_of_open_files_has_its_final_size_at_once(soft: int, hard: int, size: int) -> None:
    program = _PROGRAM.format(soft=soft, hard=hard)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    now, *others = done.stdout.split()
    assert int(now) >= size, "the table grows later"
    assert others == [str(hard), str(hard), "True"], "limits, and no file left open"
