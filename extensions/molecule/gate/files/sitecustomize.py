"""Stands for a slow disk: the engine opens each shard some seconds later, as /srv/slow-disk/seconds says."""

import importlib.abc
import importlib.util
import sys
import time

MODULE = "vllm.model_executor.model_loader.weight_utils"


def slow(module):
    """Let the module open shards late."""
    opener = module.safe_open

    def safe_open(*arguments, **options):
        with open("/srv/slow-disk/seconds") as file:
            time.sleep(float(file.read()))
        return opener(*arguments, **options)

    module.safe_open = safe_open


class Finder(importlib.abc.MetaPathFinder):
    """Waits for the module that opens shards."""

    def find_spec(self, name, path=None, target=None):
        """Return how that module is loaded."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            slow(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
