"""What has to be in place before a run, so that a certain fault meets it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible_collections.llmops.vllm.plugins.module_utils import download
from ansible_collections.llmops.vllm.tests.download import faults
from ansible_collections.llmops.vllm.tests.download.proxy import Proxy
from ansible_collections.llmops.vllm.tests.download.rig import MIB, SHARD, Rig
from ansible_collections.llmops.vllm.tests.unit.hub_server import ALWAYS, COMMIT, TOKEN, flipped, sha256_of


def at_shard(where: str, kind: Any, times: int = 1) -> Callable[[Rig], None]:
    """Aim the fault at one shard's answers."""
    return lambda rig: rig.fault(where, kind, times)


def at_shard_always(where: str, kind: Any) -> Callable[[Rig], None]:
    """The same, for good."""
    return lambda rig: rig.always(where, kind)


def at_api(where: str, kind: Any, always: bool = False) -> Callable[[Rig], None]:
    """Break the API's answers; the list of files comes from the tree, as it does where the info has no digests."""

    def arrange(rig: Rig) -> None:
        rig.hub.info_has_digests = where != "tree"
        (rig.always if always else rig.fault)(where, kind, path=None)

    return arrange


def cut_then(kind: Any, times: int = 1) -> Callable[[Rig], None]:
    """Cut a body in the middle, and break the answer to the request that wants to continue."""

    def arrange(rig: Rig) -> None:
        rig.fault("cdn", "truncate")
        rig.fault("cdn", kind, times)

    return arrange


def named(name: str) -> Callable[[Rig], None]:
    """Let the API list config.json under another name."""
    return lambda rig: rig.hub.names.update({"config.json": name})


def with_token(rig: Rig, kind: Any = None) -> None:
    """Make the repository private and give the token."""
    rig.hub.token = TOKEN
    rig.parameters["token"] = TOKEN


def elsewhere(rig: Rig) -> None:
    """Redirect a file of a private repository to a third origin."""
    with_token(rig)
    rig.always("resolve", faults.redirect(f"{rig.hub.other_origin().url}/blobs/{{sha256}}"))


def tokenless(rig: Rig) -> None:
    """Make the repository private and give no token."""
    rig.hub.token = TOKEN
    rig.undo.append(lambda: with_token(rig))


def wrong_token(rig: Rig) -> None:
    """Give a token that the hub does not know."""
    tokenless(rig)
    rig.parameters["token"] = "hf_of_somebody_else"


def gated(rig: Rig) -> None:
    """Want the licence accepted."""
    with_token(rig)
    rig.hub.gated = True
    rig.undo.append(lambda: setattr(rig.hub, "gated", False))


def pages_led_elsewhere(rig: Rig) -> None:
    """Name a next page on another origin."""
    with_token(rig)
    at_api("tree", faults.page_elsewhere(rig.hub.other_origin().url), always=True)(rig)


def repository_deleted(rig: Rig) -> None:
    """Answer as the hub does for what is not there, from the fourth shard on."""
    for number in range(4, 7):
        rig.always(
            "resolve", faults.status(404, X_Error_Code="RepoNotFound"), f"model-{number:05d}-of-00006.safetensors"
        )


def impatient(kind: Any, times: int = 1, seconds: int = 1) -> Callable[[Rig], None]:
    """Let a connection be given up after so many seconds without a byte. More would do elsewhere: hosts are busy."""

    def arrange(rig: Rig) -> None:
        rig.parameters["stall_timeout_seconds"] = seconds
        rig.fault("cdn", kind, times)

    return arrange


def every_mib(rig: Rig) -> None:
    """Let no request have more than one MiB."""
    rig.hub.truncate_after = MIB
    rig.always("cdn", "truncate")


def another_commit(rig: Rig) -> None:
    """Ask for one commit and be told of another."""
    rig.hub.refs["f" * 40] = COMMIT
    rig.parameters["revision"] = "f" * 40
    rig.undo.append(lambda: rig.parameters.update(revision="main"))


def first_run_then(change: Callable[[Rig], None]) -> Callable[[Rig], None]:
    """Let the model arrive, and change something on the disk."""

    def arrange(rig: Rig) -> None:
        assert rig.run()["changed"]
        change(rig)
        rig.hub.sent_bytes = 0

    return arrange


def flip_on_disk(rig: Rig) -> None:
    """Flip a byte of a shard and put its time back, as a failing disk does; look at every byte."""
    place = rig.snapshot / SHARD
    before = place.stat()
    place.write_bytes(flipped(place.read_bytes()))
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    rig.parameters["verify"] = "full"


def cut_on_disk(rig: Rig) -> None:
    """Cut a shard short."""
    os.truncate(rig.snapshot / SHARD, MIB)


def break_manifest(rig: Rig) -> None:
    """Write half a manifest."""
    (rig.snapshot / ".llmops/manifest.json").write_text('{"schema": 1, "fil')


def foreign_part(rig: Rig) -> None:
    """Flip a byte of what arrived of a shard before its connection ended for good."""
    rig.fault("cdn", "truncate")
    rig.always("cdn", "500")
    assert rig.run()["failed"]
    part = rig.snapshot / f".llmops/partial/{sha256_of(rig.hub.files[SHARD])}.part"
    part.write_bytes(flipped(part.read_bytes()))
    rig.hub.faults.clear()
    rig.hub.sent_bytes = 0


def linked(path: str) -> Callable[[Rig], None]:
    """Let a link lead out of the snapshot where ``path`` should be."""
    return lambda rig: rig.plant_link(path, rig.outside)


def directory_in_the_way(rig: Rig) -> None:
    """Let a directory have a file's name."""
    place = rig.snapshot / "config.json"
    place.mkdir(parents=True)
    rig.undo.append(place.rmdir)


def store_below_a_file(rig: Rig) -> None:
    """Give a store whose parent is a file."""
    (rig.base / "allowed").write_text("")
    rig.parameters["store"] = str(rig.base / "allowed/store")
    rig.undo.append(lambda: rig.parameters.update(store=str(rig.store)))


def no_room(rig: Rig) -> None:
    """Want more to stay free than there is."""
    rig.parameters["reserve_bytes"] = 2**60
    rig.undo.append(lambda: rig.parameters.update(reserve_bytes=0))


def netrc(rig: Rig) -> None:
    """Have other credentials for every host in ~/.netrc."""
    with_token(rig)
    place = rig.base / "allowed"
    place.write_text("machine 127.0.0.1 login eve password other\n")
    place.chmod(0o600)
    rig.set_environment(NETRC=str(place))


def proxied(status: int = 0, user: str = "", exempt: str = "") -> Callable[[Rig], None]:
    """Have a proxy in the environment, which refuses with ``status``."""

    def arrange(rig: Rig) -> None:
        proxy = Proxy(status)
        rig.proxies.append(proxy)
        rig.undo.append(proxy.close)
        url = f"http://{user}{proxy.authority}"
        rig.set_environment(http_proxy=url, https_proxy=url, no_proxy=exempt)

    return arrange


def proxy_down(rig: Rig) -> None:
    """Have a proxy in the environment where nobody listens."""
    url = "http://eve:5ecret@127.0.0.1:9"
    rig.set_environment(http_proxy=url, https_proxy=url)


def hub_down(rig: Rig) -> None:
    """Have nobody listen at the endpoint."""
    endpoint = rig.parameters["endpoint"]
    rig.parameters["endpoint"] = "http://127.0.0.1:9"
    rig.undo.append(lambda: rig.parameters.update(endpoint=endpoint))


def unknown_authority(rig: Rig) -> None:
    """Do not say which authority vouches for the hub."""
    ca_path = rig.parameters.pop("ca_path")
    rig.undo.append(lambda: rig.parameters.update(ca_path=ca_path))


def neither_lengths_nor_ranges(rig: Rig) -> None:
    """Serve as some mirrors do."""
    rig.hub.chunked = True


def downgraded(rig: Rig) -> None:
    """Redirect from https to http."""
    rig.always("resolve", faults.redirect("http://127.0.0.1:9/blobs/{sha256}"))


def mirrored(kind: Any = None, times: int = ALWAYS) -> Callable[[Rig], None]:
    """Have a mirror before the hub, which breaks the answers about one shard."""

    def arrange(rig: Rig) -> None:
        with_token(rig)
        mirror = rig.add_peer()
        mirror.fault("cdn", kind, times, SHARD)
        rig.parameters["sources"] = [{"type": "mirror", "url": mirror.cdn.url, "layout": "blobs"}, {"type": "hub"}]

    return arrange


def mirror_that_drips(rig: Rig) -> None:
    """Have a mirror whose connection goes on at a few bytes per second. Here a second of that is enough to leave it."""
    patience = download._PACE_SECONDS
    download._PACE_SECONDS = 1.0
    rig.undo.append(lambda: setattr(download, "_PACE_SECONDS", patience))
    mirrored(faults.dripping_for_ever, 1)(rig)


def mirror_down(rig: Rig) -> None:
    """Have a mirror where nobody listens."""
    with_token(rig)
    rig.parameters["sources"] = [{"type": "mirror", "url": "http://127.0.0.1:9"}, {"type": "hub"}]


def mirror_and_hub_wrong(rig: Rig) -> None:
    """Have wrong bytes everywhere."""
    mirrored("flip")(rig)
    rig.always("cdn", "flip")


def mirror_alone(rig: Rig) -> None:
    """Have a manifest and a mirror, and no hub."""
    mirror = rig.add_peer()
    rig.parameters["sources"] = [{"type": "mirror", "url": mirror.cdn.url, "layout": "blobs"}]
    rig.parameters["manifest"] = manifest(rig)
    rig.hub.fault("info", "500", ALWAYS)
    rig.hub.fault("resolve", "500", ALWAYS)


def peered(kind: Any) -> Callable[[Rig], None]:
    """Have two peers before the hub: where one listens no longer, the other breaks the answers about one shard."""

    def arrange(rig: Rig) -> None:
        with_token(rig)
        peer = rig.add_peer()
        peer.fault("cdn", kind, ALWAYS, SHARD)
        urls = ["http://127.0.0.1:9", peer.cdn.url]
        rig.parameters["sources"] = [{"type": "peers", "urls": urls}, {"type": "hub"}]

    return arrange


def in_directory(change: Callable[[Path], object], link: str = "copy", alone: bool = False) -> Callable[[Rig], None]:
    """Have a directory with all files before the hub, or in its place, in which something happened to one shard."""

    def arrange(rig: Rig) -> None:
        for name, data in rig.hub.files.items():
            place = rig.given / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        rig.parameters["sources"] = [{"type": "directory", "path": str(rig.given), "link": link}]
        if alone:
            rig.parameters["manifest"] = manifest(rig)
        else:
            rig.parameters["sources"].append({"type": "hub"})
        shard = rig.given / SHARD
        change(shard)
        rig.undo.append(lambda: (shard.unlink(missing_ok=True), shard.write_bytes(rig.hub.files[SHARD])))

    return arrange


def unmounted(rig: Rig) -> None:
    """Name a directory that is not there."""
    rig.parameters["sources"] = [{"type": "directory", "path": str(rig.given)}, {"type": "hub"}]


def manifest(rig: Rig) -> dict[str, Any]:
    """Return what somebody who has a hub writes down of the model."""
    return {
        "commit": COMMIT,
        "files": [
            {
                "path": name,
                "size": len(data),
                ("sha256" if rig.hub.is_lfs(name) else "git_sha1"): rig.hub.digest_of(name),
            }
            for name, data in rig.hub.files.items()
        ],
    }
