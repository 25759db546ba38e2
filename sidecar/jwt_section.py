"""The section of the settings that says whose tokens callers show, and what is wrong with a value of it."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from sidecar.credentials.settings import checked_url

# It becomes a part of principals: so it has no #, where the subject begins, and no *, which is for rules.
_ISSUER = re.compile(r"[!\"$-)+-~]{1,512}")

# Who has the key of any other can make tokens as well as check them.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


def _keys_url(text: str) -> str:
    return checked_url(text, "would have keys come unencrypted, and anybody on the way could add one; use https")


class Jwt(BaseModel):
    """Whose JSON Web Tokens callers show, and which of them are taken."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    issuer: str
    """Who makes them: their `iss`, to the letter."""
    audience: str = Field(min_length=1, max_length=512)
    """Whom they are for: their `aud`, or one of several."""
    jwks_url: Annotated[str, AfterValidator(_keys_url)] | None = None
    """Where the issuer has its public keys."""
    jwks_file: Path | None = None
    """Or the file that they are in."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    """The ways to sign that are taken."""
    ca_file: Path | None = None
    """The authorities that the issuer's address is known by. None: the system's."""
    leeway: float = Field(default=30.0, ge=0, le=300, allow_inf_nan=False)
    """How far its clock and this one may be apart, in seconds."""
    refresh: float = Field(default=300.0, ge=10, le=86_400, allow_inf_nan=False)
    """How often it is asked for its keys, in seconds."""

    @field_validator("issuer")
    @classmethod
    def _is_issuer(cls, text: str) -> str:
        if not _ISSUER.fullmatch(text):
            raise ValueError("must be the iss of its tokens, such as https://id.example, without blanks, # and *")
        return text

    @field_validator("algorithms")
    @classmethod
    def _are_some(cls, names: tuple[Algorithm, ...]) -> tuple[Algorithm, ...]:
        if not names:
            raise ValueError("must not be empty")
        return names

    @model_validator(mode="after")
    def _has_keys(self) -> Self:
        if (self.jwks_url is None) == (self.jwks_file is None):
            raise ValueError("needs a jwks_url or a jwks_file, and not both")
        if self.ca_file is not None and self.jwks_url is None:
            raise ValueError("has a ca_file, which is for a jwks_url")
        return self
