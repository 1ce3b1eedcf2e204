"""Consistency tokens as texts: one text for each token, and nothing else is accepted."""

from __future__ import annotations

import copy
import pickle
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import BadToken, TokenAhead, TokenOfOtherTopic
from headrace.model import ConsistencyToken, Position, TokenPlace, Topic, TopicConfig, WrittenPosition, combine_tokens

PLACES = st.builds(
    TokenPlace,
    topic=st.text("abc.-", min_size=1, max_size=4),
    topic_id=st.sampled_from(["pQ3_xZ-LQ2a9kW0R8mB7Ug", "0b5f9d2e"]),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
)
TOKENS = st.lists(PLACES, max_size=8).map(ConsistencyToken.of)
PLACE = TokenPlace("orders", "0b5f9d2e", 3, 17)
TEXT = "hr1.pLmKK5GTpm9yZGVyc6gwYjVmOWQyZZIDEQ"


def test_the_text_of_a_token_is_a_contract() -> None:
    """The example of docs/formats.md is read as it stands there: other versions and languages depend on it."""
    assert str(ConsistencyToken.of([PLACE])) == TEXT
    assert ConsistencyToken.parse(TEXT).places == (PLACE,)


@given(TOKENS)
def test_the_text_stands_for_the_token_and_is_safe_in_urls_and_headers(token: ConsistencyToken) -> None:
    """Encoding and decoding are inverse, and the text needs no quoting anywhere."""
    text = str(token)
    assert ConsistencyToken.parse(text) == token
    assert set(text) <= set(string.ascii_letters + string.digits + "._-")


@given(TOKENS, st.data())
def test_a_text_with_one_changed_character_is_refused(token: ConsistencyToken, data: st.DataObject) -> None:
    """No damage on the way makes another token of it: a read must not wait for a place that nobody wrote."""
    text = str(token) or TEXT
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.sampled_from(string.ascii_letters + string.digits + "._-=%é "))
    changed = text[:at] + other + text[at + 1 :]
    if changed != text:
        with pytest.raises(BadToken):
            ConsistencyToken.parse(changed)


@given(st.text(max_size=60))
def test_other_texts_are_refused(text: str) -> None:
    """Garbage is an error in plain words, and never another exception."""
    if text:
        with pytest.raises(BadToken, match="can't be used"):
            ConsistencyToken.parse(text)


def test_damaged_tokens_say_what_is_wrong() -> None:
    """The message says whether a part is missing, the version is another, or it is no token at all."""
    for text, reason in (
        (TEXT[:-4], "a part of it is missing"),
        (TEXT.replace("hr1.", "hr2."), "another version"),
        ("42", "does not begin with 'hr1.'"),
        ("hr1." + "A" * 9000, "8192 at most"),
        (f"{TEXT}=", "characters that no token has"),
    ):
        with pytest.raises(BadToken, match=reason):
            ConsistencyToken.parse(text)
    with pytest.raises(BadToken, match="of type int"):
        ConsistencyToken.parse(17)  # type: ignore[arg-type]


@given(st.lists(TOKENS, max_size=4))
def test_combined_tokens_name_the_highest_offset_of_each_partition(tokens: list[ConsistencyToken]) -> None:
    """A reader that has reached the combined token has reached each of them, in whatever order they were combined."""
    combined = ConsistencyToken.parse(combine_tokens(*map(str, tokens)))
    assert combined == ConsistencyToken().merged(*reversed(tokens))
    wanted: dict[tuple[str, str, int], int] = {}
    for place in (place for token in tokens for place in token.places):
        wanted[place[:3]] = max(place.offset, wanted.get(place[:3], 0))
    assert {place[:3]: place.offset for place in combined.places} == wanted


def test_a_combined_token_that_no_header_can_carry_is_refused() -> None:
    """It is refused where it is made, and not by some proxy on its way."""
    many = [str(ConsistencyToken.of([TokenPlace(f"topic-{n}" * 10, "0b5f9d2e", 0, n)])) for n in range(200)]
    with pytest.raises(BadToken, match="together they have"):
        combine_tokens(*many)


def test_a_place_is_checked_against_its_topic() -> None:
    """A topic that was created again, a partition and an offset that do not exist are told apart."""
    topic = Topic(name="orders", topic_id="0b5f9d2e", partitions=4, config=TopicConfig())
    PLACE.check(topic)
    PLACE.check_end(18)
    with pytest.raises(TokenOfOtherTopic, match="deleted since, or the token is of another cluster"):
        PLACE._replace(topic_id="another").check(topic)
    with pytest.raises(BadToken, match="has 4 partitions, and no partition 4"):
        PLACE._replace(partition=4).check(topic)
    with pytest.raises(TokenAhead, match="offset 17 of orders\\[3\\], which ends at 17"):
        PLACE.check_end(17)


def test_a_written_position_is_a_position_with_a_token() -> None:
    """It equals the plain position, and keeps its token when it is copied or sent to another process."""
    position = Position("orders", 3, 17, 1_700_000_000_000)
    written = WrittenPosition.at(position, "0b5f9d2e")
    assert written == position
    for again in (written, copy.copy(written), pickle.loads(pickle.dumps(written))):
        assert again.token == TEXT
