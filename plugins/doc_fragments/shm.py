# Copyright: (c) 2026, llmops.vllm maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  families:
    description:
      - Which kinds of objects to look at. The default is all of them.
      - V(zmq_socket) (sockets whose name is a UUID) and V(vllm_rendezvous) (files C(vllm_dist_*)) lie in
        O(rpc_base_path), the others in O(shm_path).
      - V(python_shm) is C(psm_*), V(python_semaphore) C(sem.mp-*), V(loky_semaphore) C(sem.loky-*), V(nccl) C(nccl-*),
        V(vllm_offload) C(vllm_offload_*.mmap), V(vllm_encoder_cache) C(vllm_ec_*.mmap), V(vllm_distributed)
        C(vllm_dist_*), V(torch) C(torch_PID_*), V(cuda_ipc) C(cuda.shm.*), V(openmp) C(__KMP_REGISTERED_LIB_*) and
        V(ray_plasma) C(plasma*), each in the exact form in which its library makes it.
    type: list
    elements: str
    choices:
      - python_shm
      - python_semaphore
      - loky_semaphore
      - nccl
      - vllm_offload
      - vllm_encoder_cache
      - vllm_distributed
      - torch
      - cuda_ipc
      - openmp
      - ray_plasma
      - zmq_socket
      - vllm_rendezvous
  extra_families:
    description:
      - More kinds of objects in O(shm_path), name to regular expression. The expression must match the whole file
        name.
    type: dict
    default: {}
  older_than_seconds:
    description: Keep what changed within this time.
    type: float
  older_than_epoch:
    description:
      - Keep what changed at or after this time, in seconds since 1970. Give the start of a launch to keep its
        objects.
      - With O(older_than_seconds), an object must be older than both.
    type: float
  keep:
    description: Globs of names to keep.
    type: list
    elements: str
    default: []
  shm_path:
    description: Directory of POSIX shared memory.
    type: path
    default: /dev/shm
  rpc_base_path:
    description:
      - Directory in which engines create their sockets and rendezvous files (C(VLLM_RPC_BASE_PATH), by default
        C(/tmp)). It is not searched when this is empty.
    type: path
    default: ""
  sysv:
    description: Whether to look at System V shared memory and semaphores too.
    type: bool
    default: false
"""
