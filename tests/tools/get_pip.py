"""Stand in for get-pip.py where ansible-test cannot download it: ensurepip, then the pip version it asks for."""

from __future__ import annotations

import subprocess
import sys

NOT_FOR_PIP_ITSELF = {"--no-setuptools", "--no-wheel", "--disable-pip-version-check"}

subprocess.check_call([sys.executable, "-m", "ensurepip", "--default-pip"])
arguments = [argument for argument in sys.argv[1:] if argument not in NOT_FOR_PIP_ITSELF]
subprocess.check_call([sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *arguments])
