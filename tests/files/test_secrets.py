"""Secrets by their shape: hidden in text, found in settings; ordinary text stays."""

import pytest

from hornbook.files.secrets import hide_secrets, holds_secret

TOKENS = (
    "ghp_" + "aB3dE6gH9j" * 4,
    "hf_" + "abcdefgHIJKLMNopqrstuvwxyzABCDEFGH",
    "sk-" + "proj-aB3dE6gH9jaB3dE6gH9jaB3dE6gH9j",
    "AKIA" + "ABCDEFGHIJKLMNOP",
    "xoxb-" + "123456789012-abcdefghij",
)


@pytest.mark.parametrize("token", TOKENS)
def test_keys_of_issuers(token: str) -> None:
    for text in (token, f"--hub.token={token}", f'{{"a": "{token}"}}', f"https://host/x?y={token}&z=1"):
        assert token not in hide_secrets(text)
        assert holds_secret(text)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("s3://me:hunter22@bucket/x", "s3://me:[hidden]@bucket/x"),
        ("https://hooks.slack.com/services/T00000000/B00000000/abcdefgh", "https://hooks.slack.com/services/[hidden]"),
        ("PASSWORD=hunter2hunter2 train", "PASSWORD=[hidden] train"),
        ("https://h/x?X-Amz-Signature=0123456789abcdef&y=1", "https://h/x?X-Amz-Signature=[hidden]&y=1"),
        ('"api_key": "0123456789"', '"api_key": "[hidden]"'),
    ],
)
def test_secrets_behind_their_name(text: str, hidden: str) -> None:
    assert hide_secrets(text) == hidden


@pytest.mark.parametrize(
    "text",
    [
        "hornbook train tiny --data data/mine --train.tokens=2000000 data.objective.token=last",
        "token_hash ad08d34ed2f4f802, sha256 4884de1e5a02439ffdcced609dd141c971449dac5b50727c925ac43acf5f8d21",
        "alerts.token=env:MY_WEBHOOK_TOKEN http://localhost:8080/x s3://bucket/path@2024",
        "the text.tokenizer.path=base/tokenizer.json",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert hide_secrets(text) == text
    assert not holds_secret(text)


def test_a_setting_is_judged_by_its_name_too() -> None:
    assert holds_secret("abcdefgh1", "log.hub_token")
    assert not holds_secret("env:HUB_TOKEN", "log.hub_token")
    assert not holds_secret("last", "data.objective.token")
    assert not holds_secret("abcdefgh1", "train.tokens")
