import inspect

from tailrace.model.documented import documented


def core(key):
    """Does it.

    Args:
        key: The key.

    Raises:
        ValueError: The key is empty.
    """


@documented(core, "Word " * 40, timeout="word " * 40)
def shell(key, timeout):
    pass


@documented(core)
def plain(key):
    pass


def test_the_text_of_a_shell_is_before_the_sections_and_its_arguments_are_the_last():
    lines = shell.__doc__.splitlines()
    assert lines[:2] == ["Does it.", ""]
    assert lines[2].startswith("Word Word")
    assert lines.index("Args:") < lines.index("    key: The key.") < lines.index("Raises:")
    (argument,) = [line for line in lines if line.startswith("    timeout: word")]
    assert lines.index("    key: The key.") < lines.index(argument) < lines.index("Raises:")
    assert shell.__doc__.count("ord") == 80


def test_added_text_is_wrapped_as_docstrings_are():
    assert max(map(len, shell.__doc__.splitlines())) <= 112
    assert any(line.startswith("        word") for line in shell.__doc__.splitlines()), "later lines are indented"


def test_without_additions_the_docstring_is_that_of_the_core():
    assert plain.__doc__ == inspect.getdoc(core)
