"""Names of resources and the Redis keys they become."""

from urllib.parse import quote

from leases.errors import InvalidResource

MAX_LENGTH = 255


def validated(resource: object) -> str:
    """Return `resource` if it can name what is leased: 1 to 255 characters of text without NUL.

    Raises InvalidResource otherwise.
    """
    if not isinstance(resource, str):
        raise InvalidResource(resource, reason="it is not text")
    if not resource:
        raise InvalidResource(resource, reason="it is empty")
    if len(resource) > MAX_LENGTH:
        raise InvalidResource(resource, reason=f"it has {len(resource)} characters, {MAX_LENGTH} are allowed")
    if "\x00" in resource:
        raise InvalidResource(resource, reason="it contains the NUL character")
    try:
        resource.encode()
    except UnicodeEncodeError:
        raise InvalidResource(resource, reason="it contains half a surrogate pair") from None
    return resource


def key_of(resource: str) -> str:
    """Return the Redis key of `resource`: injective, and one hash slot per resource.

    Braces and percent signs are escaped, so that the first `{` and the first `}` of the key are ours and the whole
    name is the hash tag (https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags).
    """
    return "lease:{" + quote(resource, safe=" !\"#$&'()*+,/:;<=>?@[\\]^`|~") + "}"
