"""What a kind of failure looks like, and the pieces that made-up logs are put together from."""

from __future__ import annotations

from dataclasses import dataclass

START = "(APIServer pid=100) INFO 03-01 10:00:00 [api_utils.py:286] non-default args: {'model': '/srv/llm/m'}\n"
UP = "INFO:     Application startup complete.\n"
CHATS = '(APIServer pid=100) INFO:     10.0.0.1:4 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'


@dataclass(frozen=True)
class Kind:
    """A log and what the diagnosis has to say of it.

    ``root`` is a pattern for the line that it has to show first. Without ``cause_class`` nothing may be named as the
    cause, and the verdict is ``verdict``.
    """

    name: str
    log: str
    cause_class: str = ""
    root: str = ""
    verdict: str = "insufficient_evidence"

    @property
    def expected(self) -> tuple[str, str]:
        return ("cause" if self.cause_class else self.verdict, self.cause_class)


def each_line(prefix: str, text: str) -> str:
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


def worker(text: str, process: str = "Worker_TP0 pid=102", place: str = "multiproc_executor.py:953") -> str:
    return each_line(f"({process}) ERROR 03-01 10:01:00 [{place}] ", text)


def core(text: str, process: str = "EngineCore pid=101") -> str:
    return worker(text, process, "core.py:1512")


def server(text: str, place: str = "async_llm.py:906") -> str:
    return worker(text, "APIServer pid=100", place)


def traceback(exception: str) -> str:
    return f'Traceback (most recent call last):\n  File "/srv/x.py", line 5, in load\n    raise it\n{exception}\n'


def gave_up(exit_codes: str = "{}") -> str:
    """The last words of a server whose engine did not start."""
    return (
        "(APIServer pid=100) RuntimeError: Engine core initialization failed. See root cause above. "
        f"Failed core proc(s): {exit_codes}\n"
    )


def loading(exception: str) -> str:
    """A launch that ends with an exception of a worker."""
    return START + worker(traceback(exception)) + gave_up()


def starting(exception: str) -> str:
    """A launch that ends with an exception of the server, before there is an engine."""
    return START + traceback(exception)


def silent(text: str, exit_codes: str = "{}") -> str:
    """A launch in which something else than the engine speaks, and the engine only ends."""
    return START + text + gave_up(exit_codes)


def serving(text: str) -> str:
    """A launch that came up, then said this and died."""
    return START + UP + text + core("EngineCore encountered a fatal error.")


def kernel(*messages: str) -> str:
    return "".join(f"Mar 01 10:00:30 gpu-1 kernel: {message}\n" for message in messages)


def systemd(*messages: str) -> str:
    return "".join(f"Mar 01 10:01:30 gpu-1 systemd[1]: vllm@kimi.service: {message}\n" for message in messages)
