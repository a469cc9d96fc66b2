"""SHA-256 of little things, without OpenSSL, which takes longer to load than to be used by a process that lives for a moment."""

from __future__ import annotations

from eventlog.light import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256 as sha256
else:
    try:
        from _sha256 import sha256
    except ImportError:
        try:
            from _sha2 import sha256
        except ImportError:
            from hashlib import sha256

__all__ = ["sha256"]
