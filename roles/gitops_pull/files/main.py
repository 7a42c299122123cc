"""Pull once; the argument is the file of settings."""

import sys

from ansible_collections.llmops.vllm.plugins.module_utils.gitops_pull import main

sys.exit(main())
