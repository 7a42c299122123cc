#!/bin/sh
# The vault's password for Ansible (ANSIBLE_VAULT_PASSWORD_FILE), out of a pipeline's secret and into no file.
printf '%s\n' "${VAULT_PASSWORD:?set the secret VAULT_PASSWORD}"
