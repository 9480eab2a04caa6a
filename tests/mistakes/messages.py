"""What every message about a mistake has to be."""

USER_ERROR = 2


def one_text(out, err):
    """Both streams without line breaks, and without what `study check` says about the study."""
    lines = out.splitlines()
    if "what a client sends:" in lines:
        lines = lines[lines.index("what a client sends:") + 1 :]
        lines = [line for line in lines if not line.startswith("  ")]
    return " ".join(" ".join([*lines, err]).split())


def check_message(text, *expected):
    """It has no stack trace and no place in Cavity's source, and these words: the place and the remedy."""
    for internal in ("Traceback", "src/cavity", "site-packages", "beartype", "jaxtyping", "Error:"):
        assert internal not in text
    for words in expected:
        assert words in text, f"{words!r} not in: {text}"


def check_command(command, words, *expected, code=USER_ERROR):
    """The command ends with the exit code, and its message has these words."""
    found, out, err = command(*words)
    text = one_text(out, err)
    assert found == code, text
    check_message(text, *expected)
