"""What takes secrets out of what is written down. Where they are known is elsewhere."""

from typing import Protocol


class RedactedText(Protocol):
    """Texts of one source, one after another: a secret may be split over them."""

    def write(self, text: str) -> str:
        """The next text, without secrets."""
        ...


class Redaction(Protocol):
    """Takes secrets out of texts, from any thread. Costs next to nothing while there are none."""

    def redact(self, text: str) -> str:
        """The text without the secrets that are whole in it."""
        ...

    def stream(self) -> RedactedText:
        """For texts that follow one another."""
        ...


class NoRedaction:
    """For where there are no secrets: every text passes as it is."""

    def redact(self, text: str) -> str:
        """The same text."""
        return text

    def stream(self) -> RedactedText:
        """The same texts."""
        return self

    def write(self, text: str) -> str:
        """The same text."""
        return text
