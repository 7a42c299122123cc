"""The reference of modules, plugins and roles as a site of HTML pages: `make docs`."""

project = "llmops.vllm"
extensions = ["sphinx_antsibull_ext"]
html_theme = "alabaster"
# Labels of Ansible's own documentation, which is not at hand; those of this collection are antsibull-docs' to check.
suppress_warnings = ["ref.ref", "toc.no_title"]
