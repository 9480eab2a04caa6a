"""Changed messages and files, sealed and signed again, are accepted or refused; `tools/fuzz.py` tries a million."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cavity.io import serialization
from tests.fuzz_targets import Files, Receivers, play_files, play_messages, without_solves

SEEDS = st.integers(0, 2**63)


@pytest.fixture(scope="module")
def receivers(tmp_path_factory):
    made = Receivers(tmp_path_factory.mktemp("client"))
    with pytest.MonkeyPatch.context() as patch:
        without_solves(patch)
        yield made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("files"))


def test_valid_messages_are_accepted(receivers):
    """Otherwise the test below would prove nothing."""
    for kind in ("greeting", "reply", "totals"):
        assert receivers.served(kind, serialization.seal(receivers.to_server[kind].container))
    for kind, parts in receivers.to_client.items():
        assert receivers.answered(serialization.seal(parts.container)), kind


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_changed_messages(receivers, seed):
    play_messages(receivers, random.Random(seed), Counter())


def test_valid_files_are_accepted(files):
    for kind, parts in files.kinds.items():
        assert files.read(kind, serialization.seal(parts.container)), kind


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_changed_files(files, seed):
    play_files(files, random.Random(seed), Counter())
