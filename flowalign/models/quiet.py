"""Silence for the time of loading, and only for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from diffusers.utils import logging as diffusers_logging
from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Iterator[None]:
    """No loading bars, and none of the warnings that are harmless here (no T5, a tiny VAE class).

    What the user had set before, bars switched off included, holds again afterwards.
    """
    libraries = (diffusers_logging, transformers_logging)
    before = [(library.get_verbosity(), library.is_progress_bar_enabled()) for library in libraries]
    for library in libraries:
        library.set_verbosity_error()
        library.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for library, (verbosity, bars) in zip(libraries, before, strict=True):
            library.set_verbosity(verbosity)
            if bars:
                library.enable_progress_bar()
