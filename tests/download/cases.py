"""The faults, and how each of them has to end. A row of docs/download-faults.md is made from each case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ansible_collections.llmops.vllm.tests.download import arrangements as arrange
from ansible_collections.llmops.vllm.tests.download import faults
from ansible_collections.llmops.vllm.tests.download.rig import SHARD, Rig
from ansible_collections.llmops.vllm.tests.unit.hub_server import ALWAYS, COMMIT

RIGHT, ERROR = "right", "error"
PLAIN, TLS = "plain", "TLS"


@dataclass(frozen=True)
class Case:
    """One fault. ``ends`` is RIGHT (every byte as it should be) or ERROR (one sentence that ``says`` matches)."""

    fault: str
    arrange: Callable[[Rig], None]
    ends: str = RIGHT
    says: str = ""
    over: tuple[str, ...] = (PLAIN,)
    pauses: tuple[float, ...] | None = None
    """The seconds that the run wanted to wait before it asked again."""
    at_most: int = 0
    """A bound in percent of what is sent, for faults of which the client takes an unknown part; 0: it is exact."""


BOTH = (PLAIN, TLS)

HUB = [
    Case("the connection ends (FIN) in the middle of a shard", arrange.at_shard("cdn", "truncate"), over=BOTH),
    Case("the connection ends after every MiB", arrange.every_mib),
    Case(
        "the connection ends before the first byte, always",
        arrange.at_shard_always("cdn", faults.hung_up),
        ERROR,
        "ended at byte 0|broke",
    ),
    Case(
        "the connection is reset (RST) in the middle of a shard",
        arrange.at_shard("cdn", "reset"),
        over=BOTH,
        at_most=117,
    ),
    Case("a shard stalls", arrange.impatient("stall"), over=BOTH, at_most=117),
    Case(
        "no answer at all, always",
        arrange.impatient(faults.silent, ALWAYS),
        ERROR,
        "no byte arrived for 1 seconds",
        at_most=67,
    ),
    Case("a shard drips, never quite stalling", arrange.impatient(faults.dripping, seconds=2), at_most=117),
    Case("one 500", arrange.at_shard("cdn", "500"), pauses=(1.0,)),
    Case("two 500s", arrange.at_shard("cdn", "500", 2), pauses=(1.0, 2.0)),
    Case("three 500s, where two retries are allowed", arrange.at_shard("cdn", "500", 3), ERROR, "answered 500"),
    Case("500 from the hub itself", arrange.at_shard("resolve", "500"), pauses=(1.0,)),
    Case("429 with Retry-After: 7", arrange.at_shard("resolve", "429"), pauses=(7.0,)),
    Case(
        "429 with RateLimit: t=55",
        arrange.at_shard("resolve", faults.status(429, RateLimit='"resolvers";r=0;t=55')),
        pauses=(55.0,),
    ),
    Case(
        "429 that asks to come back tomorrow",
        arrange.at_shard("resolve", faults.status(429, Retry_After="86400")),
        pauses=(900.0,),
    ),
    Case("one byte flipped, once", arrange.at_shard("cdn", "flip"), over=BOTH),
    Case("one byte flipped, always", arrange.at_shard_always("cdn", "flip"), ERROR, "sha256", over=BOTH),
    Case("a chunked body that ends properly, but early", arrange.at_shard("cdn", faults.ended_properly_but_early)),
    Case(
        "a body 1,000 bytes short, its length header too", arrange.at_shard("cdn", faults.offered(-1000)), at_most=117
    ),
    Case(
        "the same, always",
        arrange.at_shard_always("cdn", faults.offered(-1000)),
        ERROR,
        "offers .* bytes where the hub's API says",
        at_most=101,
    ),
    Case("a body 1,000 bytes too long", arrange.at_shard("cdn", faults.offered(1000)), at_most=117),
    Case(
        "garbage after the body on a connection kept open",
        arrange.at_shard("cdn", faults.followed_by_garbage),
        over=BOTH,
        at_most=117,  # the next request may meet the garbage
    ),
    Case("a body compressed with gzip", arrange.at_shard("cdn", faults.gzipped), at_most=117),
    Case(
        "a body compressed with gzip, always",
        arrange.at_shard_always("cdn", faults.gzipped),
        ERROR,
        "is compressed on the way",
        at_most=101,
    ),
    Case(
        "the same without a length",
        arrange.at_shard_always("cdn", faults.gzipped_without_length),
        ERROR,
        "is compressed on the way",
        at_most=101,
    ),
    Case("a guest network's login page in place of a shard", arrange.at_shard("cdn", faults.login_page)),
    Case("a range is ignored (200) where a cut shard continues", arrange.cut_then("ignore_range"), over=BOTH),
    Case("a range of other bytes comes", arrange.cut_then("wrong_range"), at_most=117),
    Case("the ETag changed, so If-Range fails", arrange.cut_then(faults.other_etag)),
    Case("416 where a cut shard continues", arrange.cut_then(faults.range_not_satisfiable, 2)),
    Case("a server that knows neither lengths nor ranges", arrange.neither_lengths_nor_ranges),
    Case("a signed URL has expired (403)", arrange.at_shard("cdn", "403")),
    Case("a signed URL expires in the middle of a shard", arrange.cut_then("403")),
    Case("every signed URL is refused", arrange.at_shard_always("cdn", "403"), ERROR, "no longer accepts"),
    Case("a redirect loop", arrange.at_shard_always("resolve", "loop"), ERROR, "redirects more than"),
    Case("a redirect to another origin; the token stays behind", arrange.elsewhere, over=BOTH),
    Case("a redirect to file:///etc/passwd", arrange.at_shard_always("resolve", "file_scheme"), ERROR, "not followed"),
    Case(
        "a redirect from https to http",
        arrange.downgraded,
        ERROR,
        "not followed",
        over=(TLS,),
    ),
    Case("404: the repository is deleted in mid-run", arrange.repository_deleted, ERROR, ""),
    Case("private, and no token given", arrange.tokenless, ERROR, "private"),
    Case("private, and a wrong token", arrange.wrong_token, ERROR, "token"),
    Case("gated, the licence not accepted", arrange.gated, ERROR, "accept its licence"),
]

API = [
    Case("500 once", arrange.at_api("info", "500"), pauses=(1.0,)),
    Case("the answer breaks off", arrange.at_api("info", faults.half_a_document), pauses=(1.0,)),
    Case("a guest network's login page", arrange.at_api("info", faults.login_page, always=True), ERROR, "not JSON"),
    Case("another commit than the one asked for", arrange.another_commit, ERROR, "answered with commit"),
    Case("pages of the file list out of order", arrange.at_api("tree", faults.backwards, always=True)),
    Case("a page fails once (503)", arrange.at_api("tree", "503")),
    Case(
        "one file on two pages", arrange.at_api("tree", faults.pages_overlap, always=True), ERROR, "lists a file twice"
    ),
    Case(
        "pages that never end",
        arrange.at_api("tree", faults.endless_pages, always=True),
        ERROR,
        "does not end properly",
    ),
    Case("the next page is on another host", arrange.pages_led_elsewhere, ERROR, "does not end properly"),
]

NAMES = [
    Case(f"`{shown}`", arrange.named(name), ERROR, words)
    for shown, name, words in (
        ("../../../outside/x", "../../../outside/x", "'..' part"),
        ("/etc/x", "/etc/x", "is absolute"),
        ("a//b", "a//b", "empty"),
        ("./config.json", "./config.json", "'.'"),
        (r"a\b", "a\\b", "backslash"),
        ("a line break", "a\nb", "control character"),
        ("an escape sequence", "\x1b[2Jb", "control character"),
        ("a NUL", "a\0b", "control character"),
        (".llmops/manifest.json", ".llmops/manifest.json", "belongs to this store"),
        ("tokenizer (a file, and a directory)", "tokenizer", "both as a file and as a directory"),
        ("300 letters", "x" * 300, "more than 255 bytes"),
        (SHARD, SHARD, "twice"),
    )
]

DISK = [
    Case("a byte of a shard flipped, its time put back (`verify: full`)", arrange.first_run_then(arrange.flip_on_disk)),
    Case("a shard cut short", arrange.first_run_then(arrange.cut_on_disk)),
    Case("half a manifest", arrange.first_run_then(arrange.break_manifest)),
    Case("a byte flipped in what had arrived of a shard", arrange.foreign_part),
    Case("`config.json` is a link that leads elsewhere", arrange.linked("config.json"), ERROR, "symbolic link"),
    Case("`tokenizer/` is a link that leads elsewhere", arrange.linked("tokenizer"), ERROR, "symbolic link"),
    Case("`.llmops/` is a link that leads elsewhere", arrange.linked(".llmops"), ERROR, "symbolic link"),
    Case(
        "`.llmops/partial/` is a link that leads elsewhere", arrange.linked(".llmops/partial"), ERROR, "symbolic link"
    ),
    Case("the snapshot is a link that leads elsewhere", arrange.linked("../" + COMMIT), ERROR, "symbolic link"),
    Case("a directory is called `config.json`", arrange.directory_in_the_way, ERROR, "not a regular file"),
    Case("the store's parent is a file", arrange.store_below_a_file, ERROR, ""),
    Case("less room than the model needs", arrange.no_room, ERROR, "shall stay free"),
]

SURROUNDINGS = [
    Case("other credentials in `.netrc`", arrange.netrc, over=BOTH),
    Case("a proxy in the environment", arrange.proxied(), over=BOTH),
    Case("a proxy that `no_proxy` exempts the hub from", arrange.proxied(502, exempt="127.0.0.1"), over=BOTH),
    Case("a proxy where nobody listens", arrange.proxy_down, ERROR, "refused|prox", over=BOTH),
    Case("a proxy that refuses the password (407)", arrange.proxied(407, user="eve:5ecret@"), ERROR, "", over=BOTH),
    Case("nobody listens at the hub", arrange.hub_down, ERROR, "refused"),
    Case("a certificate that no known authority vouches for", arrange.unknown_authority, ERROR, "ca_path", over=(TLS,)),
]

SOURCES = [
    Case("a mirror does not have a shard (404)", arrange.mirrored("404")),
    Case("a mirror does not know who asks (401)", arrange.mirrored("401")),
    Case("a mirror has other bytes", arrange.mirrored("flip")),
    Case("a mirror's connection breaks in the middle", arrange.mirrored("truncate", 1)),
    Case("a mirror breaks in the middle and answers 500 from then on", arrange.mirrored(faults.cut_once_then_500())),
    Case("a mirror drips on at some bytes per second", arrange.mirror_that_drips, at_most=101),
    Case("a mirror where nobody listens", arrange.mirror_down),
    Case("a mirror and the hub have other bytes", arrange.mirror_and_hub_wrong, ERROR, "none of the 2 sources"),
    Case("a manifest and a mirror; the hub is gone", arrange.mirror_alone),
    Case("one peer is down, the other has not got a shard yet", arrange.peered("404")),
    Case("one peer is down, the other has other bytes", arrange.peered("flip")),
    Case("one peer is down, the other redirects for ever", arrange.peered(faults.redirect_to_itself)),
    Case("a directory has a shard cut short", arrange.in_directory(faults.cut_short)),
    Case("a directory has a shard with one byte flipped", arrange.in_directory(faults.flip_file)),
    Case("the same, to be linked", arrange.in_directory(faults.flip_file, link="hardlink")),
    Case("a directory has a link in place of a shard", arrange.in_directory(faults.link_away)),
    Case("a directory is not there", arrange.unmounted),
    Case(
        "a directory alone, a shard cut short",
        arrange.in_directory(faults.cut_short, alone=True),
        ERROR,
        SHARD,
    ),
    Case(
        "a directory alone, a shard with one byte flipped",
        arrange.in_directory(faults.flip_file, alone=True),
        ERROR,
        "sha256 should be",
    ),
]

SECTIONS = {
    "The content, as the hub and its content network serve it": HUB,
    "The hub's API": API,
    "Names that the API lists": NAMES,
    "The network and the user around it": SURROUNDINGS,
    "The disk": DISK,
    "Other sources, the hub behind them": SOURCES,
}
WITHOUT_CONTENT = (*API, *NAMES, *SURROUNDINGS, *SOURCES)
