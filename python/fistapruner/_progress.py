# SPDX-License-Identifier: Apache-2.0
"""A progress bar in one line, for terminals and notebooks."""
import sys
import time
from typing import Any, Callable, Optional, TextIO, Union

Progress = Callable[[str, int, int], None]
WIDTH, DELAY, INTERVAL = 20, 0.5, 0.1  # characters; seconds until a bar appears, and between its states


def is_shown(stream: TextIO) -> bool:
    """True for a terminal, and in a notebook, whose stream is not one."""
    if stream.isatty():
        return True
    shell = sys.modules.get("IPython")
    active = shell.get_ipython() if shell else None
    return active is not None and "IPKernelApp" in getattr(active, "config", {})


def spell(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


class Bar:
    """Called with (stage, done, total). A stage that takes longer than DELAY gets a line, which
    stays when the next one begins."""

    def __init__(self, stream: Optional[TextIO] = None):
        self._stream = stream or sys.stderr
        self._stage, self._begin, self._drawn, self._length = "", 0.0, 0.0, 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != self._stage:
            self.close()
            self._stage, self._begin, self._drawn = stage, now, now + DELAY - INTERVAL
        if now - self._drawn < INTERVAL and not (done == total and self._length):
            return
        self._drawn = now
        share = min(done / total, 1.0) if total > 0 else 0.0
        filled = "█" * int(share * WIDTH)
        elapsed = now - self._begin
        left = f"<{spell(elapsed / share - elapsed)}" if 0 < share < 1 else ""
        self._draw(f"{stage} {share:4.0%} |{filled:<{WIDTH}}| {done}/{total} [{spell(elapsed)}{left}]")

    def _draw(self, text: str) -> None:
        self._stream.write("\r" + text.ljust(self._length))
        self._stream.flush()
        self._length = len(text)

    def close(self) -> None:
        if self._length:
            self._stream.write("\n")
            self._stream.flush()
        self._length, self._stage = 0, ""


def listener(progress: Union[None, bool, Progress]) -> Any:
    """What to call: a bar for True where one can be seen, nothing for None and False."""
    if progress is True:
        return Bar() if is_shown(sys.stderr) else None
    return progress or None
