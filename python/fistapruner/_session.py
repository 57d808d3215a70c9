# SPDX-License-Identifier: Apache-2.0
"""One call into the library: a context, settings, callbacks, and errors as exceptions."""
import ctypes
import functools
import json
import os
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

from . import _command, _library, _progress
from ._results import Document

library = _library.load()

Progress = Union[None, bool, _progress.Progress]  # True: a bar; None and False: nothing
Result = TypeVar("Result", bound=Document)
Log = Callable[[str, str], None]
LOG_LEVELS = ("error", "warning", "info", "debug")


class Error(RuntimeError):
    """A call failed. `status` is the name of the C status, such as "FP_ERROR_IO"."""

    status = ""


class UsageError(Error, ValueError):
    """The request is not valid: a setting, a shape, a missing argument."""


class InputError(Error):
    """An input file is missing or damaged."""


class CheckError(Error):
    """A check failed. `document` is what inspect() would have returned."""

    document: Optional[Document] = None


class Interrupted(Error):
    """The call was interrupted."""


_ERRORS = {"FP_ERROR_USAGE": UsageError, "FP_ERROR_INPUT": InputError, "FP_ERROR_CHECK": CheckError,
           "FP_ERROR_INTERRUPTED": Interrupted}


def encode(text: Any) -> bytes:
    """A path or a value as bytes for the library."""
    return os.fsencode(text)


def setting_text(value: Any) -> bytes:
    if isinstance(value, bool):
        return b"1" if value else b"0"
    return encode(repr(value) if isinstance(value, float) else str(value))


@functools.lru_cache(maxsize=None)
def load_cuda_libraries() -> None:
    """Loads NVIDIA's libraries from where only Python finds them, so that the CUDA module can use
    them. Nothing happens without a driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    for folder in _command.cuda_folders():
        for name in _command.CUDA_LIBRARIES:
            if os.path.exists(os.path.join(folder, name)):
                ctypes.CDLL(os.path.join(folder, name), mode=ctypes.RTLD_GLOBAL)


def text_list(values: Sequence[Any]) -> Any:
    return (ctypes.c_char_p * len(values))(*[encode(value) for value in values])


class Session:
    """Use as a context manager. An exception in a callback, also KeyboardInterrupt, ends the call;
    check() then raises it."""

    def __init__(self, settings: Mapping[str, Any] = {}, progress: Progress = None, log: Optional[Log] = None):
        self.context = library.fp_context_new()
        self.settings = ctypes.c_void_p()
        self._raised: Optional[BaseException] = None
        self._interrupt = ctypes.c_int(0)
        self._listener = _progress.listener(progress)
        if not self.context:
            raise MemoryError("no memory for a context")
        try:
            if settings.get("device") != "cpu":
                load_cuda_libraries()
            self._listen(log)
            self.check(library.fp_settings_new(ctypes.byref(self.settings), self.context))
            for name, value in settings.items():
                if value is not None:
                    self.check(library.fp_settings_set(self.settings, self.context, encode(name), setting_text(value)))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        if isinstance(self._listener, _progress.Bar):
            self._listener.close()
        library.fp_settings_free(self.settings)
        library.fp_context_free(self.context)
        self.settings, self.context = ctypes.c_void_p(), None

    def _listen(self, log: Optional[Log]) -> None:
        # Always set a progress callback: Python handles signals only while its own code runs, so
        # that Ctrl-C takes effect here.
        def on_progress(_: Any, stage: bytes, done: int, total: int) -> None:
            if self._listener:
                self._listener(stage.decode(), done, total)

        def on_log(_: Any, level: int, text: bytes) -> None:
            if log:
                log(LOG_LEVELS[level], text.decode(errors="replace"))

        self._progress = _library.ProgressFunction(self.guarded(on_progress))
        self._log = _library.LogFunction(self.guarded(on_log))
        library.fp_context_set_interrupt(self.context, ctypes.byref(self._interrupt))
        library.fp_context_set_progress(self.context, self._progress, None)
        if log:
            library.fp_context_set_log(self.context, self._log, None, LOG_LEVELS.index("info"))

    def guarded(self, function: Callable[..., None]) -> Callable[..., None]:
        """A callback that stores the function's exception: none may pass through C."""
        def call(*arguments: Any) -> None:
            if self._raised is None:
                try:
                    function(*arguments)
                except BaseException as error:  # noqa: B902
                    self._raised = error
                    self._interrupt.value = 1
        return call

    def document(self, kind: Type[Result], function: Callable[..., int], *arguments: Any) -> Result:
        """Calls f(char **json, context, arguments) and returns the parsed document."""
        status, text = self._call(function, *arguments)
        document = kind(json.loads(text) if text else {})
        self.check(status, document)
        return document

    def text(self, function: Callable[..., int], *arguments: Any) -> str:
        """The same for a text that is not JSON."""
        status, text = self._call(function, *arguments)
        self.check(status)
        return text.decode()

    def _call(self, function: Callable[..., int], *arguments: Any) -> Tuple[int, bytes]:
        given = ctypes.c_void_p()
        status = function(ctypes.byref(given), self.context, *arguments)
        try:
            return status, ctypes.string_at(given.value) if given.value else b""
        finally:
            library.fp_text_free(given)

    def check(self, status: int, document: Optional[Document] = None) -> None:
        """Raises if the call or a callback failed."""
        if self._raised is not None:
            raise self._raised
        if status != 0:
            name = library.fp_status_name(status).decode()
            message = library.fp_context_message(self.context).decode(errors="replace")
            if name == "FP_ERROR_MEMORY":
                raise MemoryError(message)
            error = _ERRORS.get(name, Error)(message or library.fp_status_text(status).decode())
            error.status = name
            if isinstance(error, CheckError):
                error.document = document
            raise error
